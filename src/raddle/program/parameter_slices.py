"""Cuts parameters into slices, where the sync kind synchronises slices one by one.

A region is a box of a parameter with the devices that hold it (program.py). A slice is a range of rows (of
the first dimension) of a region. It is pushed to its server, updated and pulled, or all-reduced and updated
on every holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.plans.sync import Sync
from raddle.program.parameter_region import ParameterRegion


def cut_slices(
    regions: Mapping[str, Sequence[ParameterRegion]], names: Sequence[str], sync: Sync
) -> dict[str, tuple[ParameterRegion, ...]]:
    """By parameter, its slices, each with its server; -1 if the sync kind has no servers."""
    cut = [
        (name, box, region.devices)
        for name in names
        for region in regions[name]
        for box in _cut_rows(region.box, sync, len(region.devices))
    ]
    servers = sync.assign_servers(
        [box.volume for _, box, _ in cut], [devices for *_, devices in cut]
    )
    slices: dict[str, list[ParameterRegion]] = {name: [] for name in names}
    for (name, box, devices), server in zip(cut, servers, strict=True):
        slices[name].append(ParameterRegion(box, devices, server))
    return {name: tuple(parameter_slices) for name, parameter_slices in slices.items()}


def numbered_slices(
    slices: Mapping[str, Sequence[ParameterRegion]],
) -> list[tuple[str, ParameterRegion]]:
    """All slices with the names of their parameters. A slice's place is its number in `plan.order`."""
    return [
        (name, slice_) for name, parameter_slices in slices.items() for slice_ in parameter_slices
    ]


def check_order(order: Sequence[int], slices: Mapping[str, Sequence[ParameterRegion]]) -> None:
    """Raises InputError if `plan.order` (order) has more or fewer entries than there are slices.

    It is the order in which slices are all-reduced; (): none is given.
    """
    count = len(numbered_slices(slices))
    if order and len(order) != count:
        raise InputError(
            f"the plan orders {len(order)} sums of slices, but its parameters have {count} slices: plan "
            "again, or leave the order out."
        )


def _cut_rows(box: Box, sync: Sync, holders: int) -> list[Box]:
    """Cuts a box along its first dimension. holders: how many devices hold it."""
    rows = sync.row_ranges(box.shape, holders)
    if len(rows) == 1:
        return [box]
    low = box.lo[0]
    return [Box((low + a, *box.lo[1:]), (low + b, *box.hi[1:])) for a, b in rows]
