"""Detects stalls at a parameter server: a thread warns which ranks' gradients are missing.

First it logs a warning (after `stall` seconds), then it fails the run (after `timeout` seconds). An item is
a slice of a parameter. Its server needs gradients of all its workers before it updates the item or, with
staleness, before it sends the item back to a worker that is ahead of the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from raddle.sync.rank_failure import RankFailure

logger = logging.getLogger("raddle.sync")


class StalledItem(NamedTuple):
    """An item that cannot be updated or sent back, because gradients of some ranks are missing."""

    name: str
    seconds: float  # how long it has waited for them
    missing: tuple[int, ...]  # ranks whose gradients are missing


def describe_stall(rank: int, stalled: Sequence[StalledItem]) -> str:
    """Returns a sentence that says which ranks are missing for the item that has waited longest."""
    name, seconds, missing = max(stalled, key=lambda item: item.seconds)
    whom = ", ".join(map(str, missing))
    ranks, they = ("rank", "it does") if len(missing) == 1 else ("ranks", "they do")
    more = f" (and {len(stalled) - 1} more)" if len(stalled) > 1 else ""
    return (
        f"rank {rank} has waited {seconds:.1f} s for {ranks} {whom} to submit '{name}'{more}: "
        f"see what {they}."
    )


def describe_unanswered(rank: int, server: int, name: str, seconds: float) -> str:
    """Returns a worker's sentence: it knows only that the server has not sent the item back."""
    return (
        f"rank {rank} has waited {seconds:.1f} s for rank {server} to send back '{name}': "
        "see what it does."
    )


class StallWatcher:
    """A thread that looks for stalled items a few times in `stall` seconds, and warns once for each stall.

    stalled_items: returns the items that wait now.
    """

    def __init__(
        self,
        rank: int,
        stalled_items: Callable[[], Sequence[StalledItem]],
        failure: RankFailure,
        *,
        stall: float,
        timeout: float,
    ) -> None:
        self._rank, self._stalled_items, self._failure = rank, stalled_items, failure
        self._stall, self._timeout = stall, timeout
        self._interval = poll_interval(stall, timeout)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="raddle watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5)

    def _watch(self) -> None:
        """Warns about a stall, and fails the run if it lasts longer than the time-out."""
        warned = False
        while not self._end.wait(self._interval) and not self._failure.reason:
            stalled = self._stalled_items()
            longest = max((item.seconds for item in stalled), default=0.0)
            late = bool(stalled) and longest >= min(self._stall, self._timeout)
            if late and longest >= self._timeout:
                self._failure.set_reason(describe_stall(self._rank, stalled), TimeoutError)
            elif late and not warned:
                logger.warning("%s", describe_stall(self._rank, stalled))
            warned = late


def poll_interval(stall: float, timeout: float) -> float:
    """Returns the seconds between two checks: a quarter of the shorter limit, at most 1."""
    return min(1.0, stall / 4, timeout / 4)
