"""Boxes that are sent and held, compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.graph.box import Box, subtract
from raddle.program.program import Message, ParameterRegion


def less(boxes: Iterable[Box], others: Sequence[Box]) -> list[Box]:
    """What is left of boxes without others."""
    return [piece for box in boxes for piece in subtract(box, others)]


def held_by(shares: Iterable[ParameterRegion]) -> dict[int, list[Box]]:
    """By device, the boxes of the shares that it holds."""
    held: dict[int, list[Box]] = {}
    for share in shares:
        for device in share.devices:
            held.setdefault(device, []).append(share.box)
    return held


def by_way(messages: Iterable[Message]) -> dict[tuple[int, int, int], list[Box]]:
    """Boxes of messages by source, target and part."""
    ways: dict[tuple[int, int, int], list[Box]] = {}
    for m in messages:
        ways.setdefault((m.source, m.target, m.part), []).extend(m.boxes)
    return ways
