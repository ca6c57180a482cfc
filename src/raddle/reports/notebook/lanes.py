"""Draws the last step of a timeline as SVG: a lane for each device, above a thin one for its messages."""

# x: pixels from the left; d: a device

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from raddle.program.program import Gather, Instruction, Merge, Move, Reduce, Run
from raddle.simulation.timeline import Timeline

MAX_LANES = 32  # devices that are drawn
# Pixels.
LEFT, WIDTH, RIGHT = 70, 600, 60
LANE, MESSAGES, GAP = 14, 4, 4
STEPS_PER_PIXEL = 2  # ends of intervals are rounded to half a pixel

# Kind of a task, as the page's colours are named -> what it is for people.
KINDS = {
    "forward": "forward",
    "backward": "backward",
    "merge": "sums of partial results",
    "update": "update",
    "move": "messages",
    "reduce": "collectives",
}
MESSAGE_KINDS = ("move", "reduce")


class Lanes(NamedTuple):
    """The drawing of a timeline."""

    svg: str
    kinds: list[str]  # those that were drawn, in the order of KINDS
    hidden: int  # the number of devices without a lane


def draw_lanes(timeline: Timeline) -> Lanes:
    """Return the drawing of a timeline's last step."""
    devices = timeline.program.plan.devices
    drawn = min(devices, MAX_LANES)
    step_seconds = timeline.step_ends[-1] / 1e9 / timeline.program.plan.steps  # the average
    kind_of = np.array([_kind(i) for i in timeline.program.instructions])
    parts, used = [], set[str]()
    for d in range(drawn):
        top = d * (LANE + MESSAGES + GAP)
        share = float(timeline.compute_seconds[d]) / step_seconds
        parts.append(
            f'<text x="0" y="{top + LANE - 3}">device {d}</text>'
            f'<rect class="lane" x="{LEFT}" y="{top}" width="{WIDTH}" height="{LANE}"/>'
            f'<text x="{LEFT + WIDTH + 8}" y="{top + LANE - 3}">{share:.0%}</text>'
        )
        for kind, intervals in _intervals(timeline, d, kind_of):
            used.add(kind)
            is_message = kind in MESSAGE_KINDS
            y, height = (top + LANE, MESSAGES) if is_message else (top, LANE)
            path = "".join(f"M{x:g} {y}h{width:g}v{height}h-{width:g}z" for x, width in intervals)
            parts.append(f'<path style="fill: var(--{kind})" d="{path}"/>')
    height = drawn * (LANE + MESSAGES + GAP)
    box = f"0 0 {LEFT + WIDTH + RIGHT} {height}"
    svg = f'<svg viewBox="{box}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    return Lanes(svg, [kind for kind in KINDS if kind in used], devices - drawn)


def _kind(instruction: Instruction) -> str:
    """Return the kind of an instruction's tasks."""
    if isinstance(instruction, Run):
        return "forward" if instruction.phase in ("F", "R") else "backward"
    if isinstance(instruction, Merge):
        return "merge"
    if isinstance(instruction, Move):
        return "move"
    return "reduce" if isinstance(instruction, Reduce | Gather) else "update"


def _intervals(
    timeline: Timeline, d: int, kind_of: np.ndarray
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield for each kind of task of a device its intervals: pixels of the left end, and of the width."""
    tasks = timeline.tasks
    begin, end = ([0, *timeline.step_ends])[-2:]  # nanoseconds: the ends of the last two steps
    released = timeline.start + tasks.duration
    on_device = (tasks.device == d) & (tasks.first_resource >= 0)
    chosen = np.flatnonzero(on_device & (released > begin) & (timeline.start < end))
    kinds = kind_of[tasks.instruction[chosen]]
    for kind in KINDS:
        numbers = chosen[kinds == kind]
        if len(numbers):
            cells = _cells(timeline.start[numbers], released[numbers], begin, end)
            yield kind, list(_runs(cells))


def _cells(start: np.ndarray, stop: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Return by half pixel whether one of the intervals covers a part of it."""
    count = WIDTH * STEPS_PER_PIXEL
    scale = count / max(1, end - begin)
    first = np.clip(((start - begin) * scale).astype(int), 0, count - 1)
    last = np.clip(np.ceil((stop - begin) * scale).astype(int), first + 1, count)
    change = np.zeros(count + 1, int)
    np.add.at(change, first, 1)
    np.add.at(change, last, -1)
    return np.asarray(np.cumsum(change[:-1]) > 0)


def _runs(cells: np.ndarray) -> Iterator[tuple[float, float]]:
    """Yield the runs of covered half pixels: pixels of the left end in the drawing, and of the width."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], cells, [False]]).astype(int)))
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        yield LEFT + first / STEPS_PER_PIXEL, (last - first) / STEPS_PER_PIXEL
