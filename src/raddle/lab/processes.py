"""Processes inside namespaces: which there are, and how they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from raddle.errors import InputError
from raddle.lab.commands import call

GRACE = 5.0  # seconds between asking and killing
POLL = 0.05


def inside(namespaces: Iterable[str]) -> set[int]:
    """The ids of the processes that run in these namespaces."""
    found: set[int] = set()
    for name in namespaces:
        with suppress(InputError):  # the namespace has just gone, and nothing runs in it
            found.update(map(int, call("ip", "netns", "pids", name).split()))
    return found


def end(find: Callable[[], set[int]]) -> set[int]:
    """Terminate the processes that `find` finds, kill those that stay; return all of them."""
    ended: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: set[int] = set()
        deadline = time.monotonic() + GRACE
        while (found := find()) and time.monotonic() < deadline:
            for pid in found - told:  # also those that were started meanwhile
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            told |= found
            time.sleep(POLL)
        ended |= told
    return ended


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep a second Ctrl-C until the body is done, so that clearing up is not left half way."""
    held = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
