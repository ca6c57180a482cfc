"""Reads and writes the rows of an item on one rank as one flat tensor.

An item is one slice of a parameter, or a bundle of several (item.py). Messages and sums have the slices of
a bundle one after the other, flat.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class ItemRows:
    """The rows of an item. parts: the rows of each slice, contiguous in memory."""

    __slots__ = ("parts",)

    def __init__(self, rows: Tensor | Sequence[Tensor]) -> None:
        self.parts: tuple[Tensor, ...] = (rows,) if isinstance(rows, Tensor) else tuple(rows)

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    def flat(self) -> Tensor:
        """Returns the rows as one flat tensor: a view of a single slice, a copy of several."""
        return join(self.parts)

    def write(self, flat: Tensor) -> None:
        """Sets the rows to the values of a flat tensor."""
        for part, values in zip(self.parts, split(flat, self.parts), strict=True):
            part.copy_(values)

    def clone(self) -> ItemRows:
        return ItemRows([part.clone() for part in self.parts])

    def shaped(self, flat: Tensor) -> Tensor:
        """Returns a flat tensor in the shape of the rows; with several slices it stays flat."""
        return flat.view_as(self.parts[0]) if len(self.parts) == 1 else flat.view(-1)


def join(parts: Sequence[Tensor]) -> Tensor:
    """Returns slices as one flat tensor: a view of a single slice, a copy of several."""
    return parts[0].view(-1) if len(parts) == 1 else torch.cat([part.view(-1) for part in parts])


def split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Returns views of a flat tensor, one after the other, with the shapes of `like`."""
    pieces = torch.split(flat.view(-1), [part.numel() for part in like])
    return [piece.view_as(part) for piece, part in zip(pieces, like, strict=True)]


class Gathering:
    """Collects the gradients of the slices of items until an item has all of its slices.

    slices: for each item, the numbers of its slices. For example, with [[0], [1, 2]] the item 0 is complete
    with the slice 0, and the item 1 when both other slices are there.
    """

    def __init__(self, slices: Sequence[Sequence[int]]) -> None:
        self._slices = slices
        # Slice -> (item, place of the slice in the item)
        self._place = {
            s: (item, k) for item, members in enumerate(slices) for k, s in enumerate(members)
        }
        # Item that is not complete -> place of a slice in the item -> gradient
        self._parts: dict[int, dict[int, Tensor]] = {}

    def add(self, slice_number: int, gradient: Tensor) -> tuple[int, Tensor] | None:
        """Takes the gradient of a slice; returns (item, its gradient) if all its slices are there now."""
        item, place = self._place[slice_number]
        if len(self._slices[item]) == 1:
            return item, gradient
        parts = self._parts.setdefault(item, {})
        parts[place] = gradient
        if len(parts) < len(self._slices[item]):
            return None
        del self._parts[item]
        return item, join([parts[k] for k in range(len(parts))])

    def is_waiting(self, item: int) -> bool:
        """Returns whether some gradients of an item's slices were added, and others were not."""
        return item in self._parts
