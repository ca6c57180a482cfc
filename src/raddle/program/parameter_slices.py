"""Slices of parameters: what is sent to a home, updated and sent back, or summed on all holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.plans.sync import Sync
from raddle.program.program import ParameterRegion


def cut_slices(
    regions: Mapping[str, Sequence[ParameterRegion]], names: Sequence[str], sync: Sync
) -> dict[str, tuple[ParameterRegion, ...]]:
    """Every share of the named parameters as slices of its first dimension, each with its home, if any."""
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
    """All slices in the order of their numbers, which `plan.order` names: the same on every rank."""
    return [
        (name, slice_) for name, parameter_slices in slices.items() for slice_ in parameter_slices
    ]


def check_order(order: Sequence[int], slices: Mapping[str, Sequence[ParameterRegion]]) -> None:
    """Raises InputError where a plan's order of sums, if it has one, is not of these slices."""
    count = len(numbered_slices(slices))
    if order and len(order) != count:
        raise InputError(
            f"the plan orders {len(order)} sums of slices, but its parameters have {count} slices: plan "
            "again, or leave the order out."
        )


def _cut_rows(box: Box, sync: Sync, holders: int) -> list[Box]:
    rows = sync.row_ranges(box.shape, holders)
    if len(rows) == 1:
        return [box]
    low = box.lo[0]
    return [Box((low + a, *box.lo[1:]), (low + b, *box.hi[1:])) for a, b in rows]
