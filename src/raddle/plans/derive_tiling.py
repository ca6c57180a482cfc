"""Tiles of one operator from those of another: in another size, or along the dimensions that both have."""

# d: a dimension of an operator's iteration space

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling, even_cuts

_Places = Mapping[Box, tuple[int, ...]]  # boxes, each with the devices that have a copy of it


def _places(tiling: Tiling) -> _Places:
    places: dict[Box, tuple[int, ...]] = {}
    for box, device in tiling.tiles:
        places[box] = (*places.get(box, ()), device)
    return places


def tiling_of(places: _Places) -> Tiling:
    """The boxes that are not empty: a grid if they are one."""
    places = {box: devices for box, devices in places.items() if not box.empty}
    cuts = tuple(_points(places, d) for d in range(len(next(iter(places)).lo)))
    count = math.prod(len(c) - 1 for c in cuts)
    copies = {len(devices) for devices in places.values()}
    if count == len(places) and len(copies) == 1:
        boxes = Grid(cuts, (0,) * count).boxes
        if places.keys() == set(boxes):
            return Grid(cuts, tuple(d for box in boxes for d in places[box]), copies.pop())
    return Irregular(tuple(Tile(box, d) for box, devices in places.items() for d in devices))


def _points(places: _Places, d: int) -> tuple[int, ...]:
    """The cut points along a dimension."""
    return tuple(sorted({point for box in places for point in (box.lo[d], box.hi[d])}))


def scaled(op: Op, trained: Op, tiling: Tiling, batch: int, new_batch: int) -> Tiling:
    """The same tiles in an iteration space of other sizes; parts that would be empty are gone."""
    places = _places(tiling)
    to: list[dict[int, int]] = []  # by dimension, cut point -> cut point
    for d, (old, new) in enumerate(zip(trained.space.dims, op.space.dims, strict=True)):
        points = _points(places, d)
        each = old.size // batch  # of a reshape: a sample's tokens, which stay together
        if (old.size, new.size) != (each * batch, each * new_batch) or any(
            p % each for p in points
        ):
            each = 1
        scaled = _scaled_points([p // each for p in points], new.size // each)
        to.append({p: each * s for p, s in zip(points, scaled, strict=True)})
    return tiling_of({Box(_each(to, b.lo), _each(to, b.hi)): at for b, at in places.items()})


def _each(to: Sequence[Mapping[int, int]], point: Sequence[int]) -> tuple[int, ...]:
    return tuple(along[p] for along, p in zip(to, point, strict=True))


def _scaled_points(points: Sequence[int], size: int) -> Sequence[int]:
    """Cut points for another size: equal parts stay equal, others keep their proportions."""
    old, parts = points[-1], len(points) - 1
    if size == old:
        return points
    if tuple(points) == even_cuts(old, parts):
        return even_cuts(size, parts)
    return [(2 * point * size + old) // (2 * old) for point in points]  # rounded


def paired_dims(op: Op, operand: int, dims: Sequence[int]) -> dict[int, int]:
    """Dimensions of an operator that index an operand plainly -> those that its producer has there."""
    indices = op.space.operands[operand].indices
    paired = zip(indices, dims, strict=True)
    return {index.plain_dim: d for index, d in paired if index.plain_dim is not None}


def carried(op: Op, source: Tiling, pairs: Mapping[int, int], *, spread: bool = False) -> Tiling:
    """Another operator's tiles, along those dimensions of this one that are paired with its own.

    Boxes that differ in other dimensions alone become one, on the devices of the first; to `spread` what
    all of them read, on the devices of all.
    """
    sizes = [dim.size for dim in op.space.dims]
    ends = [max(box.hi[s] for box in source.boxes) for s in range(len(source.boxes[0].hi))]
    found: dict[Box, tuple[int, ...]] = {}
    for box, devices in _places(source).items():
        lo, hi = [0] * len(sizes), list(sizes)
        for d, s in pairs.items():
            if not op.space.dims[d].unsplittable:
                lo[d] = min(box.lo[s], sizes[d])
                hi[d] = sizes[d] if box.hi[s] == ends[s] else min(box.hi[s], sizes[d])
        own = Box(tuple(lo), tuple(hi))
        before = found.get(own, ())
        found[own] = tuple(dict.fromkeys([*before, *devices])) if spread else before or devices
    # What is opaque may be random: copies of it could differ.
    return tiling_of({box: at[:1] if op.opaque else at for box, at in found.items()})
