"""The slots of one rank while it runs: tensors, and the gradients that have come for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.runtime.zero3 import Whole, Wholes


class Store:
    """Slots by number. What autograd returns may be seen by others: it is copied before it is changed."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        place: torch.device,
        wholes: Iterable[Whole] = (),
    ) -> None:
        self.shapes, self.place = shapes, place
        self.slots: list[Any] = [None] * len(shapes)
        self.grads: list[Tensor | None] = [None] * len(shapes)
        self.owned: set[int] = set()  # gradients that no one else sees
        self.given: set[int] = set()  # parameters with a gradient in this step
        self.wholes = Wholes(wholes, self.slots)

    def add(self, slot: int, gradient: Tensor) -> None:
        """Adds to the gradient of what a slot holds."""
        known = self.grads[slot]
        if known is None:
            self.grads[slot] = gradient
        elif slot in self.owned:
            known += gradient
        else:
            self.grads[slot] = known + gradient
            self.owned.add(slot)

    def add_box(self, slot: int, place: tuple[slice, ...], tensor: Tensor) -> None:
        """The same for a part of it; `tensor` is the store's own."""
        shape, known = self.shapes[slot], self.grads[slot]
        if known is None and tensor.shape == shape:
            self.grads[slot] = tensor
            return
        if known is None:
            known = torch.zeros(shape, dtype=tensor.dtype, device=self.place)
        elif slot not in self.owned:
            known = known.clone()
        known[place] += tensor
        self.grads[slot] = known
        self.owned.add(slot)

    def forget(self, slot: int) -> None:
        """A gradient has been handed on."""
        self.grads[slot] = None
        self.owned.discard(slot)
        self.given.discard(slot)

    def take(self, slot: int) -> Tensor | None:
        """The gradient of a value, which nobody asks for again."""
        gradient, self.grads[slot] = self.grads[slot], None
        self.owned.discard(slot)
        return gradient

    def gradient(self, slot: int, dtype: torch.dtype) -> Tensor:
        """Zeros where nobody gave one."""
        found = self.grads[slot]
        if found is None:
            return torch.zeros(self.shapes[slot], dtype=dtype, device=self.place)
        return found

    def drop(self, slots: Iterable[int]) -> None:
        """Nobody reads these any more."""
        for slot in slots:
            self.slots[slot] = None
