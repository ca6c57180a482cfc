"""Measures how far a rank's clock differs from rank 0's, so that traces of several machines can be joined.

Processes on one machine share the clock `time.perf_counter`. Different machines compare their clocks after
barriers: all ranks leave a barrier at about the same time. The median of several barriers ignores ranks
that were delayed. The result is exact to about the time of a small message.
"""

from __future__ import annotations

import pathlib
import socket
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from raddle.transport.base import Transport

ROUNDS = 9  # number of barriers
# Two machines may have the same host name, but not the same boot id.
BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")


def clock_offset(transport: Transport, exchange: Callable[[Any], list[Any]]) -> float:
    """Returns the seconds to add to this rank's clock to get rank 0's; all ranks call it together.

    exchange: all-gather of Python objects, one for each rank.
    """
    times = []
    for _ in range(ROUNDS):
        transport.barrier()
        times.append(time.perf_counter())
    machine = _machine()
    rank_0: tuple[str, list[float]] = exchange((machine, times))[0]  # its machine and times
    if machine == rank_0[0]:
        return 0.0
    return median(theirs - mine for theirs, mine in zip(rank_0[1], times, strict=True))


def _machine() -> str:
    """Returns a text that identifies this machine among those of the run."""
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    return f"{socket.gethostname()} {boot}"
