"""Which devices hold which boxes of a parameter, told from the tiles that read it."""

from __future__ import annotations

from collections.abc import Sequence

from raddle.graph.box import Box, cells, merge
from raddle.plans.plan import Plan
from raddle.plans.regions import add_unread
from raddle.program.program import Share


def shares_from(
    shape: Sequence[int], by_device: dict[int, list[Box]], plan: Plan
) -> tuple[Share, ...]:
    """A parameter as boxes, each with the devices that hold it, given the boxes that each device reads."""
    add_unread(by_device, shape)
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
