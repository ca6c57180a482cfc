"""Measures how many CPU cores are busy with other work, which makes the results of `raddle probe` worse."""

from __future__ import annotations

import time
from pathlib import Path

WINDOW = 0.2  # seconds of the measurement


def busy_cores() -> float | None:
    """Return how many cores are busy now (2.5: two and a half), or None if the system does not tell."""
    try:
        before = _ticks()
        time.sleep(WINDOW)
        after = _ticks()
    except (OSError, ValueError):
        return None
    shares = []
    for core in before.keys() & after.keys():
        idle, total = (now - then for now, then in zip(after[core], before[core], strict=True))
        shares.append(1 - idle / total if total else 0.0)
    return round(sum(shares), 2)


def _ticks() -> dict[str, tuple[int, int]]:
    """Return for each core (idle ticks, all ticks) since the machine started, from /proc/stat.

    A line of this file is, for example, "cpu0 225 0 117 9811 3 0 1 0 0 0": ticks by kind of use.
    """
    ticks = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            # The fields after the first 8 are the time of guests, which the first ones include.
            counts = [int(field) for field in fields[:8]]
            ticks[name] = counts[3] + counts[4], sum(counts)  # 3: idle, 4: waiting for a disk
    return ticks
