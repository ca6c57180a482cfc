"""Boxes: products of half-open integer intervals. Every tile, region and transfer is a box.

>>> a, b = Box.full((4, 6)), Box((2, 3), (8, 9))
>>> a & b
[2:4 3:6]
>>> a - b
[[0:2 0:6], [2:4 0:3]]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Box(NamedTuple):
    """The points p with lo[i] <= p[i] < hi[i]. A box without dimensions has exactly one point."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @classmethod
    def full(cls, shape: Sequence[int]) -> Box:
        """Returns the box of all elements of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(max(0, h - lo) for lo, h in zip(self.lo, self.hi, strict=True))

    @property
    def volume(self) -> int:
        return math.prod(self.shape)

    @property
    def empty(self) -> bool:
        return any(h <= lo for lo, h in zip(self.lo, self.hi, strict=True))

    def __and__(self, other: Box) -> Box:
        """Returns the intersection, which may be empty."""
        return Box(tuple(map(max, self.lo, other.lo)), tuple(map(min, self.hi, other.hi)))

    def __sub__(self, other: Box) -> list[Box]:
        """Returns the points of self that are not in other, as disjoint boxes: at most two a dimension."""
        common = self & other
        if common.empty:
            return [] if self.empty else [self]
        pieces: list[Box] = []
        lo, hi = list(self.lo), list(self.hi)
        for d in range(len(lo)):
            if lo[d] < common.lo[d]:
                pieces.append(Box(tuple(lo), (*hi[:d], common.lo[d], *hi[d + 1 :])))
            if common.hi[d] < hi[d]:
                pieces.append(Box((*lo[:d], common.hi[d], *lo[d + 1 :]), tuple(hi)))
            lo[d], hi[d] = common.lo[d], common.hi[d]
        return pieces

    def contains(self, other: Box) -> bool:
        """Returns whether every point of other is a point of self."""
        return other.empty or (
            all(a <= b for a, b in zip(self.lo, other.lo, strict=True))
            and all(a >= b for a, b in zip(self.hi, other.hi, strict=True))
        )

    def shift(self, offsets: Sequence[int]) -> Box:
        return Box(
            tuple(a + b for a, b in zip(self.lo, offsets, strict=True)),
            tuple(a + b for a, b in zip(self.hi, offsets, strict=True)),
        )

    def slices_within(self, outer: Box) -> tuple[slice, ...]:
        """Returns the slices that select this box from a tensor that has the elements of `outer`."""
        return tuple(
            slice(a - o, b - o) for a, b, o in zip(self.lo, self.hi, outer.lo, strict=True)
        )

    def __repr__(self) -> str:
        return "[" + " ".join(f"{a}:{b}" for a, b in zip(self.lo, self.hi, strict=True)) + "]"


def bounding_box(boxes: Iterable[Box]) -> Box:
    """Returns the smallest box that contains all boxes."""
    los, his = zip(*((b.lo, b.hi) for b in boxes), strict=True)
    return Box(tuple(map(min, zip(*los, strict=True))), tuple(map(max, zip(*his, strict=True))))


def subtract(box: Box, others: Iterable[Box]) -> list[Box]:
    """Returns the points of `box` that are in none of the others, as disjoint boxes."""
    remaining = [] if box.empty else [box]
    for other in others:
        remaining = [piece for b in remaining for piece in b - other]
    return remaining


def covers(boxes: Iterable[Box], box: Box) -> bool:
    """Returns whether the union of the boxes contains `box`."""
    return not subtract(box, boxes)


def disjoint(boxes: Sequence[Box]) -> bool:
    """Returns whether no two boxes share a point.

    Sweeps along the first dimension, so that few pairs are compared.
    """
    active: list[Box] = []  # boxes that end after the place that the sweep has reached
    for box in sorted(b for b in boxes if not b.empty):
        if box.lo:
            active = [a for a in active if a.hi[0] > box.lo[0]]
        if any(not (a & box).empty for a in active):
            return False
        active.append(box)
    return True


def cells(boxes: Sequence[Box]) -> list[tuple[Box, tuple[int, ...]]]:
    """Divides the union of boxes, which may overlap, into disjoint cells.

    Returns each cell with its *owners*: the indices of all boxes that contain it.

    >>> cells([Box((0,), (3,)), Box((2,), (5,))])
    [([0:2], (0,)), ([2:3], (0, 1)), ([3:5], (1,))]
    """
    dim = _differing_dim(boxes)
    if dim is not None:
        return _sweep(boxes, dim)
    result: list[tuple[Box, tuple[int, ...]]] = []
    for i, box in enumerate(boxes):
        uncovered = [] if box.empty else [box]  # the part of the box that is in no cell yet
        # the cells so far, split where they overlap the box
        split: list[tuple[Box, tuple[int, ...]]] = []
        for cell, owners in result:
            common = cell & box
            if common.empty:
                split.append((cell, owners))
                continue
            split.append((common, (*owners, i)))
            split.extend((piece, owners) for piece in cell - common)
            uncovered = [piece for u in uncovered for piece in u - common]
        result = split + [(piece, (i,)) for piece in uncovered]
    return sorted(result)


def _differing_dim(boxes: Sequence[Box]) -> int | None:
    """Returns the only dimension in which the boxes differ.

    Returns None if there are several such dimensions, or none, or if a box is empty.
    """
    if not boxes or boxes[0].empty:
        return None
    first, differing = boxes[0], None
    for box in boxes:
        if box is first or box == first:
            continue
        for d in range(len(first.lo)):
            if box.lo[d] != first.lo[d] or box.hi[d] != first.hi[d]:
                if box.lo[d] >= box.hi[d] or (differing is not None and differing != d):
                    return None
                differing = d
    return differing


def _sweep(boxes: Sequence[Box], d: int) -> list[tuple[Box, tuple[int, ...]]]:
    """Returns the cells of boxes that differ in dimension d only.

    Each cell lies between two adjacent box ends.
    """
    order = sorted(range(len(boxes)), key=lambda i: boxes[i].lo[d])
    lo, hi = boxes[0].lo, boxes[0].hi
    result: list[tuple[Box, tuple[int, ...]]] = []
    active: list[int] = []  # the numbers of the boxes that contain the current interval a:b
    next_box = 0  # the first box of `order` that the sweep has not reached
    for a, b in pairwise(sorted({end for box in boxes for end in (box.lo[d], box.hi[d])})):
        active = [i for i in active if boxes[i].hi[d] > a]
        while next_box < len(order) and boxes[order[next_box]].lo[d] == a:
            active.append(order[next_box])
            next_box += 1
        if active:
            cell = Box((*lo[:d], a, *lo[d + 1 :]), (*hi[:d], b, *hi[d + 1 :]))
            result.append((cell, tuple(sorted(active))))
    return result


def merge_boxes(boxes: Sequence[Box]) -> list[Box]:
    """Joins disjoint boxes that touch along a whole face; returns fewer boxes with the same points."""
    remaining = [b for b in boxes if not b.empty]
    for d in range(len(remaining[0].lo) if remaining else 0):
        # This order puts boxes next to each other that touch along d and are equal in all other dimensions.
        remaining.sort(key=lambda b: (b.lo[:d], b.hi[:d], b.lo[d + 1 :], b.hi[d + 1 :], b.lo[d]))
        joined: list[Box] = []
        for box in remaining:
            last = joined[-1] if joined else None
            if last and last.hi[d] == box.lo[d] and _equal_except(last, box, d):
                joined[-1] = Box(last.lo, box.hi)
            else:
                joined.append(box)
        remaining = joined
    return sorted(remaining)


def _equal_except(a: Box, b: Box, d: int) -> bool:
    return (
        a.lo[:d] == b.lo[:d]
        and a.hi[:d] == b.hi[:d]
        and a.lo[d + 1 :] == b.lo[d + 1 :]
        and a.hi[d + 1 :] == b.hi[d + 1 :]
    )


def grid(shape: Sequence[int], cuts: Sequence[int]) -> list[Box]:
    """Splits a shape into cuts[i] parts along dimension i: boxes in row-major order.

    The sizes of the parts of a dimension differ by at most one element.

    >>> grid((5, 4), (2, 1))
    [[0:3 0:4], [3:5 0:4]]
    """
    boxes = [Box((), ())]
    for size, parts in zip(shape, cuts, strict=True):
        # rounded up, so the larger parts come first
        cut_points = [-(-size * i // parts) for i in range(parts + 1)]
        spans = list(pairwise(cut_points))
        boxes = [Box((*b.lo, lo), (*b.hi, hi)) for b in boxes for lo, hi in spans]
    return boxes
