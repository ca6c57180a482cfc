"""How busy this machine is with other work: a probe of a busy machine measures its neighbours."""

from __future__ import annotations

import time
from pathlib import Path

WINDOW = 0.2  # seconds


def busy_cores() -> float | None:
    """How many cores are at work right now, or None where the system does not say."""
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
    """Of each core: idle and all ticks since the machine started."""
    ticks = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            counts = [
                int(field) for field in fields[:8]
            ]  # what guests used is in the others already
            ticks[name] = counts[3] + counts[4], sum(counts)  # idle, and waiting for a disk
    return ticks
