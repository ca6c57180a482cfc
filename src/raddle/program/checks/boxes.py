"""Helpers of the checks of a program, to compare the boxes that are sent with those that are held.

A box is a range of indices in each dimension of a tensor (graph/box.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.graph.box import Box, subtract
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Message


def subtract_all(boxes: Iterable[Box], others: Sequence[Box]) -> list[Box]:
    """Returns the part of `boxes` that is in none of `others`, as boxes."""
    return [piece for box in boxes for piece in subtract(box, others)]


def boxes_by_holder(regions: Iterable[ParameterRegion]) -> dict[int, list[Box]]:
    """Returns the boxes of the regions that each device holds."""
    boxes_by_device: dict[int, list[Box]] = {}
    for region in regions:
        for device in region.devices:
            boxes_by_device.setdefault(device, []).append(region.box)
    return boxes_by_device


def boxes_by_path(messages: Iterable[Message]) -> dict[tuple[int, int, int], list[Box]]:
    """Returns the boxes of messages by path: (source, target, part).

    part: the number of the tile that computed the partial results; -1: the message has complete results.
    """
    boxes_by_path: dict[tuple[int, int, int], list[Box]] = {}
    for m in messages:
        boxes_by_path.setdefault((m.source, m.target, m.part), []).extend(m.boxes)
    return boxes_by_path
