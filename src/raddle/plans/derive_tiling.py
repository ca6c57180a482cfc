"""Derives the tiling of one operator from that of another.

`scaled_tiling` is for the same operator with other sizes, `projected_tiling` for a neighbour in the graph
that shares some dimensions with it.
"""

# d: a dimension of an operator's iteration space, or a device; s: a dimension of the other operator. Cut
# points along a dimension: 0, the borders between boxes, and the size.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling, even_cuts

_DevicesByBox = Mapping[Box, tuple[int, ...]]  # by box, the devices that have a copy of it


def _devices_by_box(tiling: Tiling) -> _DevicesByBox:
    devices_by_box: dict[Box, tuple[int, ...]] = {}
    for box, device in tiling.tiles:
        devices_by_box[box] = (*devices_by_box.get(box, ()), device)
    return devices_by_box


def tiling_from_boxes(devices_by_box: _DevicesByBox) -> Tiling:
    """Returns the tiling of the boxes that are not empty: a Grid if they form one, else Irregular."""
    devices_by_box = {box: devices for box, devices in devices_by_box.items() if not box.empty}
    cuts = tuple(_cut_points(devices_by_box, d) for d in range(len(next(iter(devices_by_box)).lo)))
    count = math.prod(len(c) - 1 for c in cuts)
    copies = {len(devices) for devices in devices_by_box.values()}
    if count == len(devices_by_box) and len(copies) == 1:
        boxes = Grid(cuts, (0,) * count).boxes  # device 0: only the boxes are used
        if devices_by_box.keys() == set(boxes):
            return Grid(cuts, tuple(d for box in boxes for d in devices_by_box[box]), copies.pop())
    return Irregular(
        tuple(Tile(box, d) for box, devices in devices_by_box.items() for d in devices)
    )


def _cut_points(boxes: _DevicesByBox, d: int) -> tuple[int, ...]:
    """Returns the cut points along dimension d."""
    return tuple(sorted({point for box in boxes for point in (box.lo[d], box.hi[d])}))


def scaled_tiling(op: Op, original: Op, tiling: Tiling, batch: int, new_batch: int) -> Tiling:
    """Returns the tiling of `original`, scaled to the sizes of `op`. Tiles that would be empty disappear.

    batch, new_batch: the samples of both graphs.
    """
    devices_by_box = _devices_by_box(tiling)
    new_point: list[dict[int, int]] = []  # by dimension, old cut point -> new cut point
    for d, (old, new) in enumerate(zip(original.space.dims, op.space.dims, strict=True)):
        points = _cut_points(devices_by_box, d)
        # If a dimension joins samples and tokens, the unit is the tokens of a sample: cut points that are
        # multiples of it stay so.
        unit = old.size // batch
        if (old.size, new.size) != (unit * batch, unit * new_batch) or any(
            p % unit for p in points
        ):
            unit = 1
        new_points = _scaled_points([p // unit for p in points], new.size // unit)
        new_point.append({p: unit * new_p for p, new_p in zip(points, new_points, strict=True)})
    return tiling_from_boxes(
        {
            Box(_scaled_corner(new_point, b.lo), _scaled_corner(new_point, b.hi)): devices
            for b, devices in devices_by_box.items()
        }
    )


def _scaled_corner(new_point: Sequence[Mapping[int, int]], point: Sequence[int]) -> tuple[int, ...]:
    """Returns a corner of a box, with the new cut point along each dimension in place of the old one."""
    return tuple(along[p] for along, p in zip(new_point, point, strict=True))


def _scaled_points(points: Sequence[int], size: int) -> Sequence[int]:
    """Returns cut points for another size. Equal parts stay equal; other parts keep their proportions."""
    old_size, parts = points[-1], len(points) - 1
    if size == old_size:
        return points
    if tuple(points) == even_cuts(old_size, parts):
        return even_cuts(size, parts)
    # point * size / old_size, rounded to the nearest integer
    return [(2 * point * size + old_size) // (2 * old_size) for point in points]


def paired_dims(op: Op, operand: int, dims: Sequence[int]) -> dict[int, int]:
    """Returns which dimensions of `op` are dimensions of the operator that computes an operand (producer).

    The result maps a dimension of `op` to one of the producer, if it indexes the operand alone, without a
    stride or an offset. dims: by dimension of the operand, the dimension of the producer's iteration space.
    """
    indices = op.space.operands[operand].indices
    pairs = zip(indices, dims, strict=True)
    return {index.plain_dim: d for index, d in pairs if index.plain_dim is not None}


def projected_tiling(
    op: Op, other: Tiling, pairs: Mapping[int, int], *, spread: bool = False
) -> Tiling:
    """Returns the tiles of another operator, projected onto the dimensions of `op`.

    pairs: dimension of `op` -> dimension of the other operator. Dimensions of `op` that are not there are
    not split. Several tiles may become the same box: it is placed on the devices of the first tile or, with
    `spread`, on those of all these tiles.
    """
    sizes = [dim.size for dim in op.space.dims]
    # By dimension s of the other operator, its size.
    ends = [max(box.hi[s] for box in other.boxes) for s in range(len(other.boxes[0].hi))]
    devices_by_box: dict[Box, tuple[int, ...]] = {}
    for box, devices in _devices_by_box(other).items():
        lo, hi = [0] * len(sizes), list(sizes)
        for d, s in pairs.items():
            if not op.space.dims[d].unsplittable:
                lo[d] = min(box.lo[s], sizes[d])
                # The sizes may differ: the last tile ends where the dimension of `op` ends.
                hi[d] = sizes[d] if box.hi[s] == ends[s] else min(box.hi[s], sizes[d])
        projected = Box(tuple(lo), tuple(hi))
        earlier = devices_by_box.get(projected, ())
        devices_by_box[projected] = (
            tuple(dict.fromkeys([*earlier, *devices])) if spread else earlier or devices
        )
    # An opaque operator may be random: copies of its result could differ, so each box has one device.
    return tiling_from_boxes(
        {box: devices[:1] if op.opaque else devices for box, devices in devices_by_box.items()}
    )
