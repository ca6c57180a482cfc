"""Slices of parameters: what is sent to a home, updated and sent back, or summed on all holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.plans.sync import Sync
from raddle.program.program import Share


def slices_of(
    shares: Mapping[str, Sequence[Share]], names: Sequence[str], sync: Sync
) -> dict[str, tuple[Share, ...]]:
    """Every share of the named parameters as slices of its first dimension, each with its home, if any."""
    cut = [
        (name, box, share.devices)
        for name in names
        for share in shares[name]
        for box in _rows(share.box, sync, len(share.devices))
    ]
    homes = sync.assign([box.volume for _, box, _ in cut], [devices for *_, devices in cut])
    found: dict[str, list[Share]] = {name: [] for name in names}
    for (name, box, devices), home in zip(cut, homes, strict=True):
        found[name].append(Share(box, devices, home))
    return {name: tuple(own) for name, own in found.items()}


def numbered(slices: Mapping[str, Sequence[Share]]) -> list[tuple[str, Share]]:
    """All slices in the order of their numbers, which `plan.order` names: the same on every rank."""
    return [(name, share) for name, own in slices.items() for share in own]


def check_order(order: Sequence[int], slices: Mapping[str, Sequence[Share]]) -> None:
    """Raises InputError where a plan's order of sums, if it has one, is not of these slices."""
    count = len(numbered(slices))
    if order and len(order) != count:
        raise InputError(
            f"the plan orders {len(order)} sums of slices, but its parameters have {count} slices: plan "
            "again, or leave the order out."
        )


def _rows(box: Box, sync: Sync, holders: int) -> list[Box]:
    rows = sync.rows(box.shape, holders)
    if len(rows) == 1:
        return [box]
    low = box.lo[0]
    return [Box((low + a, *box.lo[1:]), (low + b, *box.hi[1:])) for a, b in rows]
