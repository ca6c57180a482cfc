"""Divides a parameter into regions by the devices that read them.

A region is a box of a parameter with its holders, the devices that have a copy of it, and its server, the
device that updates it; -1: every holder updates its copy (program.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from raddle.errors import InputError, quote
from raddle.graph.box import Box, cells, merge_boxes
from raddle.plans.plan import Plan
from raddle.plans.regions import add_unread_boxes
from raddle.program.parameter_region import ParameterRegion


def parameter_regions(
    shape: Sequence[int], by_device: dict[int, list[Box]], plan: Plan
) -> tuple[ParameterRegion, ...]:
    """Cuts a parameter into disjoint regions, so that each region has one set of holders.

    by_device: the boxes that each device reads; it is changed: the first device also gets the unread boxes.
    """
    add_unread_boxes(by_device, shape)
    devices_by_box: dict[Box, list[int]] = {}
    for device, boxes in sorted(by_device.items()):
        for box in boxes:
            devices_by_box.setdefault(box, []).append(device)
    device_lists = list(devices_by_box.values())  # by number of a box, the devices that read it
    # `cells` cuts boxes that overlap into disjoint ones, each with the numbers of the boxes that contain
    # it. Then boxes with the same holders are merged: the gates of an LSTM, say, read separate rows.
    boxes_by_holders: dict[tuple[int, ...], list[Box]] = {}
    for box, box_numbers in cells(list(devices_by_box)):  # f: a box number
        devices = (
            sorted({d for f in box_numbers for d in device_lists[f]})
            if len(box_numbers) > 1
            else device_lists[box_numbers[0]]
        )
        boxes_by_holders.setdefault(tuple(devices), []).append(box)
    regions = []
    for holders, boxes in boxes_by_holders.items():
        server = plan.parsed_sync.region_server(holders)
        regions += [ParameterRegion(box, holders, server) for box in merge_boxes(boxes)]
    return tuple(sorted(regions))


def sharded_in_groups(
    regions: Sequence[ParameterRegion], plan: Plan
) -> tuple[ParameterRegion, ...]:
    """Returns the regions of a trained parameter, with the groups of holders that the sync kind asks for.

    A group of all holders is the same as no groups, and a region with one holder has none. Raises
    InputError if holders cannot be divided into such groups.
    """
    size = plan.parsed_sync.group_size
    if not size:
        return tuple(regions)
    for region in regions:
        count = len(region.devices)
        if region.needs_sync and count % size:
            raise InputError(
                f"sync is {quote(plan.sync)}, but {count} devices hold the same part of a parameter, which "
                f"groups of {size} do not divide: choose a group that divides {count}."
            )
    return tuple(
        region._replace(group_size=size) if len(region.devices) > size else region
        for region in regions
    )
