"""Helpers to compare the boxes that are sent with those that are held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.graph.box import Box, subtract
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Message


def subtract_all(boxes: Iterable[Box], others: Sequence[Box]) -> list[Box]:
    """What remains of `boxes` without `others`."""
    return [piece for box in boxes for piece in subtract(box, others)]


def boxes_by_holder(regions: Iterable[ParameterRegion]) -> dict[int, list[Box]]:
    """By device, the boxes of the regions that it holds."""
    boxes_by_device: dict[int, list[Box]] = {}
    for region in regions:
        for device in region.devices:
            boxes_by_device.setdefault(device, []).append(region.box)
    return boxes_by_device


def boxes_by_path(messages: Iterable[Message]) -> dict[tuple[int, int, int], list[Box]]:
    """The boxes of messages, by path: source, target, and part (the tile of a partial result, or -1)."""
    boxes_by_path: dict[tuple[int, int, int], list[Box]] = {}
    for m in messages:
        boxes_by_path.setdefault((m.source, m.target, m.part), []).extend(m.boxes)
    return boxes_by_path
