"""Which devices hold which boxes of a parameter, told from the tiles that read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from raddle.graph.box import Box, cells, merge, subtract
from raddle.graph.graph import Op
from raddle.graph.space import Space
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid, Tiling
from raddle.program.program import Share


def shares_of(
    shape: Sequence[int],
    users: Sequence[tuple[Op, int]],
    tiles: Mapping[str, Tiling],
    plan: Plan,
) -> tuple[Share, ...]:
    """A parameter as boxes, each with the devices that hold it; users are operators with an operand."""
    by_device: dict[int, list[Box]] = {}
    for op, operand in users:
        for device, region in operand_regions(op, operand, tiles[op.name]):
            boxes = by_device.setdefault(device, [])
            if region is not None and region not in boxes:
                boxes.append(region)
    return shares_from(shape, by_device, plan)


def shares_from(
    shape: Sequence[int], by_device: dict[int, list[Box]], plan: Plan
) -> tuple[Share, ...]:
    """The same, given the boxes that each device reads."""
    # Rows that no operator reads are still updated (weight decay): the first holder keeps them.
    used = [box for boxes in by_device.values() for box in boxes]
    unused = subtract(Box.full(shape), dict.fromkeys(used))
    by_device[min(by_device)].extend(unused)
    held: dict[Box, list[int]] = {}  # devices that hold a box
    for device, boxes in sorted(by_device.items()):
        for box in boxes:
            held.setdefault(box, []).append(device)
    owners = list(held.values())
    alike: dict[tuple[int, ...], list[Box]] = {}  # gates of a recurrence read their rows each
    for box, found in cells(list(held)):
        devices = (
            sorted({d for f in found for d in owners[f]}) if len(found) > 1 else owners[found[0]]
        )
        alike.setdefault(tuple(devices), []).append(box)
    shares = []
    for holders, boxes in alike.items():
        home = plan.syncing.home(holders)
        shares += [Share(box, holders, home) for box in merge(boxes)]
    return tuple(sorted(shares))


def operand_regions(op: Op, operand: int, tiling: Tiling) -> Iterable[tuple[int, Box | None]]:
    """By tile, its device and the region of an operand; the same for all if no split touches it."""
    access = op.space.operands[operand]
    touched = {term.dim for index in access.indices for term in index.terms}
    touched |= set(op.space.reduced) if access.once or access.factor else set()
    if isinstance(tiling, Grid) and all(len(tiling.cuts[d]) == 2 for d in touched):
        region = _regions(op.space, tiling.boxes[0])[operand]
        return ((device, region) for device in dict.fromkeys(tiling.devices))
    return ((tile.device, _regions(op.space, tile.box)[operand]) for tile in tiling.tiles)


@lru_cache(maxsize=100_000)
def _regions(space: Space, box: Box) -> tuple[Box | None, ...]:
    return space.regions(box)
