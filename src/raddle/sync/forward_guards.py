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


class Guards:
    """`numbers` are, by id of a parameter, what `wait` is called with, once somebody has set it."""

    def __init__(self, model: nn.Module, numbers: Mapping[int, int]) -> None:
        self.wait: Callable[[int], None] | None = None
        self.order: dict[int, None] = {}  # of first use in the forward
        self.unguarded: set[int] = set()
        self._numbers = numbers
        self._reading: _Reading | None = None
        self._handles: list[RemovableHandle] = []
        # The model's own comes first, and before a user's hooks, which may read parameters.
        self._root = (
            model.register_forward_pre_hook(self._enter, prepend=True),
            model.register_forward_hook(self._leave, always_call=True),
        )
        for module in model.modules():
            own = [numbers[id(p)] for p in module.parameters(recurse=False) if id(p) in numbers]
            if own:
                hook = _Guard(self, own)
                self._handles.append(module.register_forward_pre_hook(hook, prepend=True))

    def learned(self, used: Mapping[int, Any]) -> set[int]:
        """Ends the first step: of what was `used`, what nobody has waited for, or not early enough."""
        for handle in self._root:
            handle.remove()
        self.unguarded |= {number for number in used if number not in self.order}
        return self.unguarded

    def close(self) -> None:
        for handle in (*self._root, *self._handles):
            handle.remove()

    def guard(self, numbers: list[int]) -> None:
        for number in numbers:
            self.order.setdefault(number)
            if self.wait is not None:
                self.wait(number)

    def read(self, tensor: Tensor) -> None:
        """In the first step: something computes with a tensor."""
        number = self._numbers.get(id(tensor))
        if number is not None and number not in self.order:
            self.unguarded.add(number)

    def _enter(self, *_: Any) -> None:
        if self._reading is None and not torch.compiler.is_compiling():
            self._reading = _Reading(self)
            self._reading.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, *_: Any) -> None:
        if self._reading is not None:
            self._reading.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._reading = None


class _Guard:
    """A hook of one module."""

    def __init__(self, guards: Guards, numbers: list[int]) -> None:
        self._guards, self._numbers = guards, numbers

    def __call__(self, *_: Any) -> None:
        if (
            not torch.compiler.is_compiling()
        ):  # else it would become a part of the graph, or break it
            self._guards.guard(self._numbers)


class _Reading(TorchFunctionMode):
    """Sees what is computed with."""

    def __init__(self, guards: Guards) -> None:
        super().__init__()
        self._guards = guards

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "__set__"):  # p.shape reads no values
            for value in (*args, *(kwargs or {}).values()):
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, nn.Parameter):
                        self._guards.read(tensor)
        return func(*args, **(kwargs or {}))
