"""Computes the regions that the tiles of a tiling read of each operand.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

For all tiles at once, it gives the same as `Space.regions` for one tile. An index expression says which
element a point of the iteration space reads, such as `2*h + r` for the rows that a convolution with stride
2 reads. An access (graph/space.py) is the index expressions of an operand, one for each of its dimensions.
A grid is a tiling by cuts along the dimensions.
"""

# t: tile (of a grid: in row-major order), p: dimension of an operand, d: dimension of the iteration space

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from raddle.graph.index import Index
from raddle.graph.needed_operands import needed_operands
from raddle.graph.space import Space
from raddle.plans.tiling import Grid, Tiling

Array = np.ndarray
Cuts = tuple[tuple[int, ...], ...]  # by dimension: the borders of its parts, as (0, 4, 8)


class Regions(NamedTuple):
    """The regions of one operand, by tile."""

    boxes: Array  # [t, p, (from, to)]
    needed: Array  # [t]: False where only padding is read, or another tile adds it (a bias)

    @property
    def volumes(self) -> Array:
        """By tile, the number of elements that it reads."""
        sizes = self.boxes[:, :, 1] - self.boxes[:, :, 0]
        return np.where(self.needed, sizes.prod(axis=1), 0)


def regions(space: Space, tiling: Tiling) -> tuple[Regions, ...]:
    """Returns the regions of each operand. A tile of a grid stands for all of its copies."""
    if isinstance(tiling, Grid):
        return _grid_regions(space, tiling.cuts)
    regions_by_tile = [space.regions(tile.box) for tile in tiling.tiles]
    result = []
    for operand, access in enumerate(space.operands):
        operand_regions = [regions[operand] for regions in regions_by_tile]
        boxes = np.zeros((len(operand_regions), len(access.indices), 2), np.int64)
        for t, region in enumerate(operand_regions):
            if region is not None:
                boxes[t, :, 0], boxes[t, :, 1] = region.lo, region.hi
        result.append(Regions(boxes, np.array([r is not None for r in operand_regions], bool)))
    return tuple(result)


def tile_boxes_in(tiling: Tiling, dims: Sequence[int]) -> Array:
    """Returns by tile its box in some dimensions, [t, d, (from, to)]; in a grid, once for all copies."""
    if not isinstance(tiling, Grid):
        tile_boxes = np.zeros((len(tiling.tiles), len(dims), 2), np.int64)
        for t, tile in enumerate(tiling.tiles):
            tile_boxes[t, :, 0] = [tile.box.lo[d] for d in dims]
            tile_boxes[t, :, 1] = [tile.box.hi[d] for d in dims]
        return tile_boxes
    shape = tiling.parts
    boxes = np.zeros((*shape, len(dims), 2), np.int64)
    for k, d in enumerate(dims):
        along = [1] * len(shape)  # a shape that broadcasts along dimension d
        along[d] = shape[d]
        boxes[..., k, 0] = np.asarray(tiling.cuts[d][:-1]).reshape(along)
        boxes[..., k, 1] = np.asarray(tiling.cuts[d][1:]).reshape(along)
    return boxes.reshape(math.prod(shape), len(dims), 2)


def _grid_regions(space: Space, cuts: Cuts) -> tuple[Regions, ...]:
    """Returns the regions of each operand for a grid with these cuts."""
    shape = tuple(len(c) - 1 for c in cuts)
    count = math.prod(shape)
    first = _holds_origin(space, shape)  # by tile: whether it adds the operands that are added once
    boxes, nonempty = [], []
    for access in space.operands:
        region = np.zeros((count, len(access.indices), 2), np.int64)
        for p, index in enumerate(access.indices):
            region[:, p] = _tile_ranges(index, cuts, shape)
        boxes.append(region)
        nonempty.append((region[:, :, 0] < region[:, :, 1]).all(axis=1))
    # An operand is not needed if its region is empty, or if another tile adds it (as a bias).
    needed_by_tile = needed_operands(space.operands, nonempty, first)
    return tuple(Regions(b, n) for b, n in zip(boxes, needed_by_tile, strict=True))


def _tile_ranges(index: Index, cuts: Cuts, shape: tuple[int, ...]) -> Array:
    """Returns by tile the range (from, to) of one index expression.

    The expression depends on few dimensions, so ranges are computed for these and then repeated.
    """
    dims = tuple(sorted({term.dim for term in index.terms}))
    ranges = _ranges(index, dims, tuple(cuts[d] for d in dims), len(cuts))
    # A shape that broadcasts along the dimensions `dims`.
    along = [shape[d] if d in dims else 1 for d in range(len(shape))]
    return np.broadcast_to(ranges.reshape(*along, 2), (*shape, 2)).reshape(-1, 2)


@lru_cache(maxsize=100_000)
def _ranges(index: Index, dims: tuple[int, ...], cuts: Cuts, rank: int) -> Array:
    """Returns the ranges of an index expression for all parts of the dimensions `dims`.

    cuts: the borders of these parts, by dimension.
    rank: the number of dimensions of the iteration space.
    """
    # If the expression is one dimension alone, and does not exceed the size of the operand (its extent),
    # the ranges are the parts of this dimension.
    if index.plain_dim is not None and cuts[0][-1] <= index.extent:
        return np.array(list(pairwise(cuts[0])), np.int64)
    box = [(0, 1)] * rank
    ranges = []
    for spans in product(*(pairwise(c) for c in cuts)):
        for d, span in zip(dims, spans, strict=True):
            box[d] = span
        ranges.append(index.range(box))
    return np.array(ranges, np.int64)


def _holds_origin(space: Space, shape: tuple[int, ...]) -> Array:
    """Returns by tile whether it holds the origin of the summed dimensions: such a tile adds the bias."""
    first = np.ones(shape, bool)
    for d in space.reduced_dims:
        along = [1] * len(shape)  # a shape that broadcasts along dimension d
        along[d] = shape[d]
        first = first & (np.arange(shape[d]) == 0).reshape(along)
    return first.reshape(-1)
