"""Finds and ends the processes inside network namespaces, which are the emulated hosts of a lab."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from raddle.errors import InputError
from raddle.lab.commands import call

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
POLL_SECONDS = 0.05  # between two looks at the processes


def processes_in(namespaces: Iterable[str]) -> set[int]:
    """Return the ids of the processes that run in these namespaces."""
    pids: set[int] = set()
    for name in namespaces:
        with suppress(InputError):  # the namespace has just been removed
            pids.update(map(int, call("ip", "netns", "pids", name).split()))
    return pids


def end_processes(find: Callable[[], set[int]]) -> set[int]:
    """Terminate the processes that `find` returns, and kill those that do not end; return all their ids.

    `find` is called again and again, so processes that start meanwhile are ended too.
    """
    ended: set[int] = set()
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        signalled: set[int] = set()
        deadline = time.monotonic() + GRACE_SECONDS
        while (running := find()) and time.monotonic() < deadline:
            for pid in running - signalled:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            signalled |= running
            time.sleep(POLL_SECONDS)
        ended |= signalled
    return ended


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the `with` block ends, so that a clean-up is always completed."""
    signals = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
