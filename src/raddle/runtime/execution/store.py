"""The slots of one rank while it runs: tensors, and the gradients that have come for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.runtime.zero3 import GatheredParameter, GatheredParameters


class Store:
    """Slots by number. What autograd returns may be seen by others: it is copied before it is changed."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        place: torch.device,
        gathered: Iterable[GatheredParameter] = (),
    ) -> None:
        self.shapes, self.place = shapes, place
        self.slots: list[Any] = [None] * len(shapes)
        self.grads: list[Tensor | None] = [None] * len(shapes)
        self.exclusive: set[int] = set()  # gradients that no one else sees
        self.with_gradient: set[int] = set()  # parameters with a gradient in this step
        self.gathered = GatheredParameters(gathered, self.slots)

    def add_gradient(self, slot: int, gradient: Tensor) -> None:
        """Adds to the gradient of what a slot holds."""
        accumulated = self.grads[slot]
        if accumulated is None:
            self.grads[slot] = gradient
        elif slot in self.exclusive:
            accumulated += gradient
        else:
            self.grads[slot] = accumulated + gradient
            self.exclusive.add(slot)

    def add_gradient_box(self, slot: int, index: tuple[slice, ...], tensor: Tensor) -> None:
        """The same for a part of it; `tensor` is the store's own."""
        shape, accumulated = self.shapes[slot], self.grads[slot]
        if accumulated is None and tensor.shape == shape:
            self.grads[slot] = tensor
            return
        if accumulated is None:
            accumulated = torch.zeros(shape, dtype=tensor.dtype, device=self.place)
        elif slot not in self.exclusive:
            accumulated = accumulated.clone()
        accumulated[index] += tensor
        self.grads[slot] = accumulated
        self.exclusive.add(slot)

    def clear_gradient(self, slot: int) -> None:
        """A gradient has been handed on."""
        self.grads[slot] = None
        self.exclusive.discard(slot)
        self.with_gradient.discard(slot)

    def take_gradient(self, slot: int) -> Tensor | None:
        """The gradient of a value, which nobody asks for again."""
        gradient, self.grads[slot] = self.grads[slot], None
        self.exclusive.discard(slot)
        return gradient

    def gradient_or_zeros(self, slot: int, dtype: torch.dtype) -> Tensor:
        """Zeros where nobody gave one."""
        gradient = self.grads[slot]
        if gradient is None:
            return torch.zeros(self.shapes[slot], dtype=dtype, device=self.place)
        return gradient

    def drop(self, slots: Iterable[int]) -> None:
        """Nobody reads these any more."""
        for slot in slots:
            self.slots[slot] = None
