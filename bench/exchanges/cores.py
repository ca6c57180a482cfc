"""Measures how busy the cores of this machine are, from /proc/stat."""

from __future__ import annotations

from pathlib import Path


class Busy:
    """Measures from when it is made until `share` is called."""

    def __init__(self) -> None:
        self.start = _ticks()

    def share(self) -> float:
        """Return the share of all cores' time that was not idle."""
        idle, total = (now - then for now, then in zip(_ticks(), self.start, strict=True))
        return 1 - idle / total if total else 0.0


def _ticks() -> tuple[int, int]:
    """Return (idle ticks, all ticks) of all cores together since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)  # 3: idle, 4: waiting for a disk
