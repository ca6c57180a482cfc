"""Works out which elements of its operands an operator's tiles read, and so what each device reads.

The elements of an operand that one tile reads are a box, its region (graph/space.py). A device reads the
regions of all its tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from raddle.graph.box import Box, subtract
from raddle.graph.graph import Op
from raddle.graph.space import Space
from raddle.plans.tiling import Grid, Tiling


def operand_regions(op: Op, operand: int, tiling: Tiling) -> Iterable[tuple[int, Box | None]]:
    """Returns pairs of a device and the region of an operand that its tile reads (None: it reads nothing).

    There is a pair for each tile. If the tiles do not split the dimensions of the operand, all of them read
    the same elements: then there is one pair for each device.
    """
    access = op.space.operands[operand]  # how the operator indexes the operand (graph/space.py)
    # The dimensions of the operator that decide which elements a tile reads: those in the operand's index.
    touched = {term.dim for index in access.indices for term in index.terms}
    # Reduced dimensions may decide too whether a tile reads the operand. A bias is added by one tile alone
    # (`added_once`). A factor is not read where another factor of the product is all padding.
    touched |= set(op.space.reduced_dims) if access.added_once or access.is_factor else set()
    # Two cut points, 0 and the size: not split.
    if isinstance(tiling, Grid) and all(len(tiling.cuts[d]) == 2 for d in touched):
        region = _regions(op.space, tiling.boxes[0])[operand]
        return ((device, region) for device in dict.fromkeys(tiling.devices))
    return ((tile.device, _regions(op.space, tile.box)[operand]) for tile in tiling.tiles)


@lru_cache(maxsize=100_000)
def _regions(space: Space, box: Box) -> tuple[Box | None, ...]:
    return space.regions(box)


def add_read_boxes(by_device: dict[int, list[Box]], op: Op, operand: int, tiling: Tiling) -> None:
    """Adds to `by_device` the boxes of an operand that each device reads. No box is added twice."""
    for device, region in operand_regions(op, operand, tiling):
        boxes = by_device.setdefault(device, [])
        if region is not None and region not in boxes:
            boxes.append(region)


def add_unread_boxes(by_device: dict[int, list[Box]], shape: Sequence[int]) -> None:
    """Adds the boxes of a parameter that no operator reads to the first device in `by_device`.

    They need a device that holds them, as weight decay still updates them.
    """
    read = dict.fromkeys(box for boxes in by_device.values() for box in boxes)
    by_device[min(by_device)].extend(subtract(Box.full(shape), read))
