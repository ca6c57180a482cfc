"""Processes inside namespaces: which there are, and how they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from raddle.errors import InputError
from raddle.lab.commands import call

GRACE_SECONDS = 5.0  # seconds between asking and killing
POLL_SECONDS = 0.05


def processes_in(namespaces: Iterable[str]) -> set[int]:
    """The ids of the processes that run in these namespaces."""
    pids: set[int] = set()
    for name in namespaces:
        with suppress(InputError):  # the namespace has just gone, and nothing runs in it
            pids.update(map(int, call("ip", "netns", "pids", name).split()))
    return pids


def end_processes(find: Callable[[], set[int]]) -> set[int]:
    """Terminate the processes that `find` finds, kill those that stay; return all of them."""
    ended: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        signalled: set[int] = set()
        deadline = time.monotonic() + GRACE_SECONDS
        while (running := find()) and time.monotonic() < deadline:
            for pid in running - signalled:  # also those that were started meanwhile
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            signalled |= running
            time.sleep(POLL_SECONDS)
        ended |= signalled
    return ended


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Keep a second Ctrl-C until the body is done, so that clearing up is not left half way."""
    signals = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
