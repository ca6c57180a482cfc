"""The slots of one rank during a run: their tensors and the gradients of these tensors.

A slot is a numbered place for one tensor: a box of a value, of a parameter or of a partial result
(actions.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.runtime.zero3 import GatheredParameter, GatheredParameters


class Store:
    """Tensors and gradients by slot number.

    place: the torch device; gathered: ZeRO-3 parameters, which have memory only while they are used. A
    gradient from autograd may share memory with other tensors. It is copied before the first in-place
    change.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        place: torch.device,
        gathered: Iterable[GatheredParameter] = (),
    ) -> None:
        self.shapes, self.place = shapes, place
        self.slots: list[Any] = [None] * len(shapes)
        self.grads: list[Tensor | None] = [None] * len(shapes)
        # Slots whose gradient shares no memory with other tensors, so that it may be changed in place
        self.exclusive: set[int] = set()
        # Slots of parameters that have a gradient in this step
        self.with_gradient: set[int] = set()
        self.gathered = GatheredParameters(gathered, self.slots)

    def add_gradient(self, slot: int, gradient: Tensor) -> None:
        """Adds to the gradient of a slot."""
        accumulated = self.grads[slot]
        if accumulated is None:
            self.grads[slot] = gradient
        elif slot in self.exclusive:
            accumulated += gradient
        else:
            self.grads[slot] = accumulated + gradient
            self.exclusive.add(slot)

    def add_gradient_box(self, slot: int, index: tuple[slice, ...], tensor: Tensor) -> None:
        """Adds to a part of a slot's gradient; `tensor` may be kept, so it must not change later."""
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
        """Forgets the gradient of a slot, after it was sent or applied."""
        self.grads[slot] = None
        self.exclusive.discard(slot)
        self.with_gradient.discard(slot)

    def take_gradient(self, slot: int) -> Tensor | None:
        """Returns the gradient of a slot and forgets it."""
        gradient, self.grads[slot] = self.grads[slot], None
        self.exclusive.discard(slot)
        return gradient

    def gradient_or_zeros(self, slot: int, dtype: torch.dtype) -> Tensor:
        """Returns the gradient of a slot; zeros of this dtype if it has none."""
        gradient = self.grads[slot]
        if gradient is None:
            return torch.zeros(self.shapes[slot], dtype=dtype, device=self.place)
        return gradient

    def drop(self, slots: Iterable[int]) -> None:
        """Empties slots that no later action reads."""
        for slot in slots:
            self.slots[slot] = None
