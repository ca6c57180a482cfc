"""Tilings: how the iteration space of an operator is divided into tiles, each computed on a device.

Most tilings are grids. A grid is stored as its cut points, so that a plan for a thousand devices stays
small. A tile may have *copies* on several devices: each computes it, and a consumer reads one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple

from raddle.graph.box import Box


class Tile(NamedTuple):
    """A box of an operator's iteration space, computed on a device."""

    box: Box
    device: int


@dataclass(frozen=True)
class Grid:
    """A tiling into the boxes between cut points, in row-major order. Copies of a box follow each other.

    Here, rows 0 to 2 are on device 0 and rows 3 to 4 on device 1:

    >>> Grid(((0, 3, 5), (0, 4)), (0, 1)).tiles[1]
    Tile(box=[3:5 0:4], device=1)
    """

    cuts: tuple[tuple[int, ...], ...]  # by dimension: 0, ..., size
    devices: tuple[int, ...]  # by tile
    copies: int = 1  # of each box

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """Each box once, without its copies."""
        spans = [list(pairwise(c)) for c in self.cuts]
        return tuple(
            Box(tuple(lo for lo, _ in span), tuple(hi for _, hi in span))
            for span in product(*spans)
        )

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        boxes = (box for box in self.boxes for _ in range(self.copies))
        return tuple(Tile(box, device) for box, device in zip(boxes, self.devices, strict=True))

    @cached_property
    def uniform(self) -> bool:
        """Whether all boxes have the same shape."""
        return all(len({b - a for a, b in pairwise(c)}) == 1 for c in self.cuts)

    @property
    def parts(self) -> tuple[int, ...]:
        """The number of parts along each dimension."""
        return tuple(len(c) - 1 for c in self.cuts)


@dataclass(frozen=True)
class Irregular:
    """A tiling into any boxes on any devices."""

    tiles: tuple[Tile, ...]

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """Each box once, without its copies."""
        return tuple(dict.fromkeys(tile.box for tile in self.tiles))

    @property
    def devices(self) -> tuple[int, ...]:
        """The device of each tile."""
        return tuple(tile.device for tile in self.tiles)


Tiling = Grid | Irregular


def even_cuts(size: int, parts: int) -> tuple[int, ...]:
    """Returns the cut points of parts whose sizes differ by one at most; the first is a larger one."""
    return tuple(-(-size * i // parts) for i in range(parts + 1))


def uneven_cuts(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the cut points of parts of the given sizes."""
    points = [0]
    for size in sizes:
        points.append(points[-1] + size)
    return tuple(points)


def whole_tiling(shape: Sequence[int], devices: Sequence[int]) -> Grid:
    """Returns a tiling that is not split. With several devices, each has a copy."""
    return Grid(tuple((0, s) for s in shape), tuple(devices), len(devices))
