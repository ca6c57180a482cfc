"""Modules wait for their parameters before they compute: that is what lets a step end without a barrier.

A parameter that its own module has not waited for is read unguarded: by a parent that uses it directly,
in a compiled graph, or outside of the model. The first step, in which nothing is under way yet, shows
which ones are; they are waited for at the end of a step instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle


class ForwardGuards:
    """`numbers` are, by id of a parameter, what `wait` is called with, once somebody has set it."""

    def __init__(self, model: nn.Module, index_by_id: Mapping[int, int]) -> None:
        self.wait: Callable[[int], None] | None = None
        self.use_order: dict[int, None] = {}  # of first use in the forward
        self.unguarded: set[int] = set()
        self._index_by_id = index_by_id
        self._read_tracker: _ReadTracker | None = None
        self._module_hooks: list[RemovableHandle] = []
        # The model's own comes first, and before a user's hooks, which may read parameters.
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
        """Ends the first step: of what was `used`, what nobody has waited for, or not early enough."""
        for handle in self._root_hooks:
            handle.remove()
        self.unguarded |= {index for index in used if index not in self.use_order}
        return self.unguarded

    def close(self) -> None:
        for handle in (*self._root_hooks, *self._module_hooks):
            handle.remove()

    def wait_for(self, indices: list[int]) -> None:
        for index in indices:
            self.use_order.setdefault(index)
            if self.wait is not None:
                self.wait(index)

    def note_read(self, tensor: Tensor) -> None:
        """In the first step: something computes with a tensor."""
        index = self._index_by_id.get(id(tensor))
        if index is not None and index not in self.use_order:
            self.unguarded.add(index)

    def _enter(self, *_: Any) -> None:
        if self._read_tracker is None and not torch.compiler.is_compiling():
            self._read_tracker = _ReadTracker(self)
            self._read_tracker.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, *_: Any) -> None:
        if self._read_tracker is not None:
            self._read_tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._read_tracker = None


class _ModuleGuard:
    """A hook of one module."""

    def __init__(self, guards: ForwardGuards, indices: list[int]) -> None:
        self._guards, self._indices = guards, indices

    def __call__(self, *_: Any) -> None:
        if (
            not torch.compiler.is_compiling()
        ):  # else it would become a part of the graph, or break it
            self._guards.wait_for(self._indices)


class _ReadTracker(TorchFunctionMode):
    """Sees what is computed with."""

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
