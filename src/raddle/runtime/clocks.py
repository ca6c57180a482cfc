"""Ranks' clocks, read against rank 0's.

Processes of one machine share `time.perf_counter`. Between machines it is compared behind barriers: all
ranks leave one at about the same time, and the median of several leaves out those that were held up. So
times of different machines agree to about the time that a small message takes.
"""

from __future__ import annotations

import pathlib
import socket
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from raddle.transport.base import Transport

ROUNDS = 9
BOOT = pathlib.Path(
    "/proc/sys/kernel/random/boot_id"
)  # another machine with the same name has another


def clock_offset(transport: Transport, exchange: Callable[[Any], list[Any]]) -> float:
    """Seconds to add to this rank's clock to get rank 0's; all ranks call it together."""
    times = []
    for _ in range(ROUNDS):
        transport.barrier()
        times.append(time.perf_counter())
    machine = _machine()
    first: tuple[str, list[float]] = exchange((machine, times))[0]
    if machine == first[0]:
        return 0.0
    return median(theirs - mine for theirs, mine in zip(first[1], times, strict=True))


def _machine() -> str:
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    return f"{socket.gethostname()} {boot}"
