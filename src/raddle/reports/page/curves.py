"""Describes memory over time for the HTML page: curves with few points that still show every peak."""

from __future__ import annotations

from typing import Any

import numpy as np

from raddle.reports.page.columns import Columns
from raddle.simulation.memory.peaks import memory_curves
from raddle.simulation.timeline import Timeline

MAX_POINTS = 400  # points of a curve: about as many as a screen shows
Array = np.ndarray


def describe_memory(timeline: Timeline, columns: Columns) -> dict[str, Any]:
    """Return memory curves over the last step's period, and the capacity of each device in bytes.

    Devices with equal curves share one. Times are in ns since the period began, levels in bytes: a level
    lasts from its time to the next. `columns` stores the lists of numbers (columns.py).
    """
    begin, end = ([0, *timeline.step_ends])[-2:]  # ns: the ends of the last two steps
    curves: dict[bytes, dict[str, Any]] = {}
    for d, (times, levels) in enumerate(memory_curves(timeline)):
        times, levels = thin_curve(*_clip_to_window(times, levels, begin, end))
        key = times.tobytes() + levels.tobytes()
        if key not in curves:
            curves[key] = {
                "devices": [],
                "time": columns.add(times - begin, delta=True),
                "bytes": columns.add(levels, delta=True),
            }
        curves[key]["devices"].append(d)
    devices = timeline.cluster.devices[: timeline.program.plan.devices]
    return {"curves": list(curves.values()), "capacity": [device.memory for device in devices]}


def _clip_to_window(times: Array, levels: Array, begin: int, end: int) -> tuple[Array, Array]:
    """Return the points from `begin` to `end`; the first has the level that holds at `begin`."""
    first = max(0, int(np.searchsorted(times, begin, side="right")) - 1)
    last = max(first + 1, int(np.searchsorted(times, end, side="right")))
    return np.maximum(times[first:last], begin), levels[first:last]


def thin_curve(times: Array, levels: Array, points: int = MAX_POINTS) -> tuple[Array, Array]:
    """Return a step curve of at most `points` points, nowhere below the given one and with its peak.

    Each point stands for several consecutive points of the given curve, and has their highest level.
    """
    if len(times) <= points:
        return times, levels
    starts = np.linspace(0, len(times), points + 1).astype(int)[:-1]
    return times[starts], np.maximum.reduceat(levels, starts)
