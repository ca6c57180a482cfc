"""Guards: forward pre-hooks that make each module wait for its own parameters before it computes.

With guards a step can end before its updates have arrived (P3). A parameter is unguarded if it is
read before a guard has waited for it: by a parent module that uses it directly, in a compiled graph, or
outside of the model. The first step, in which no update is pending yet, finds these parameters. For them,
the optimizer's `step()` waits instead (SlicedMechanism in sliced_mechanism.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle


class ForwardGuards:
    """The guards of all modules of a model.

    A parameter is identified by its index in the list of trained parameters (trained_parameters.py).
    index_by_id: id(parameter) -> its index. wait(index): waits for a parameter. It is None, and no guard
    waits, until SlicedMechanism (sliced_mechanism.py) sets it at the end of the first step.
    """

    def __init__(self, model: nn.Module, index_by_id: Mapping[int, int]) -> None:
        self.wait: Callable[[int], None] | None = None
        self.use_order: dict[int, None] = {}  # indices, in the order of first use in the forward
        self.unguarded: set[int] = set()
        self._index_by_id = index_by_id
        self._read_tracker: _ReadTracker | None = None
        self._module_hooks: list[RemovableHandle] = []
        # Prepended, because a user's hooks may read parameters.
        self._root_hooks = (
            model.register_forward_pre_hook(self._enter, prepend=True),
            model.register_forward_hook(self._leave, always_call=True),
        )
        for module in model.modules():
            indices = [
                index_by_id[id(p)] for p in module.parameters(recurse=False) if id(p) in index_by_id
            ]
            if indices:
                hook = _ModuleGuard(self, indices)
                self._module_hooks.append(module.register_forward_pre_hook(hook, prepend=True))

    def finish_first_step(self, used: Mapping[int, Any]) -> set[int]:
        """Ends the first step. Returns the indices of all unguarded parameters.

        used: its keys are the indices of parameters that got a gradient. Those that no guard has seen are
        unguarded, too.
        """
        for handle in self._root_hooks:
            handle.remove()
        self.unguarded |= {index for index in used if index not in self.use_order}
        return self.unguarded

    def close(self) -> None:
        """Removes all hooks."""
        for handle in (*self._root_hooks, *self._module_hooks):
            handle.remove()

    def wait_for(self, indices: list[int]) -> None:
        """Waits for a module's parameters, and records the order of first use."""
        for index in indices:
            self.use_order.setdefault(index)
            if self.wait is not None:
                self.wait(index)

    def note_read(self, tensor: Tensor) -> None:
        """Notes, in the first step, that an operation reads a tensor, which may be a parameter."""
        index = self._index_by_id.get(id(tensor))
        if index is not None and index not in self.use_order:
            self.unguarded.add(index)

    def _enter(self, *_: Any) -> None:
        """Begins to track reads when the model's forward begins; only in the first step."""
        if self._read_tracker is None and not torch.compiler.is_compiling():
            self._read_tracker = _ReadTracker(self)
            self._read_tracker.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, *_: Any) -> None:
        """Ends the tracking of reads when the model's forward ends."""
        if self._read_tracker is not None:
            self._read_tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._read_tracker = None


class _ModuleGuard:
    """The forward pre-hook of one module."""

    def __init__(self, guards: ForwardGuards, indices: list[int]) -> None:
        self._guards, self._indices = guards, indices

    def __call__(self, *_: Any) -> None:
        # torch.compile would put the wait into the compiled graph, or break the graph at it.
        if not torch.compiler.is_compiling():
            self._guards.wait_for(self._indices)


class _ReadTracker(TorchFunctionMode):
    """While it is active, notes the parameters that torch operations read."""

    def __init__(self, guards: ForwardGuards) -> None:
        super().__init__()
        self._guards = guards

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "__set__"):  # p.shape reads no values
            for value in (*args, *(kwargs or {}).values()):
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, nn.Parameter):
                        self._guards.note_read(tensor)
        return func(*args, **(kwargs or {}))
