"""A thread that starts large sends: copying them takes the caller's time otherwise."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from raddle.transport.base import Doing, Pending


class Sender:
    """Does what it is given, in that order, on a thread of its own."""

    def __init__(self, limit: float, late: Callable[[Doing], Exception]) -> None:
        self._limit, self._late = limit, late  # what to raise where a send has not begun in time
        self._queue: queue.SimpleQueue[tuple[_Started, Callable[[], Pending]] | None] = (
            queue.SimpleQueue()
        )
        self.busy = 0  # sends that have not begun
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="raddle sender", daemon=True)
        self._thread.start()

    def start(self, send: Callable[[], Pending], doing: Doing) -> Pending:
        started = _Started(self._limit, lambda: self._late(doing))
        with self._lock:
            self.busy += 1
        self._queue.put((started, send))
        return started

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(5)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            started, send = item
            try:
                started.pending = send()
            except BaseException as error:  # raised where it is waited for
                started.error = error
            with self._lock:
                self.busy -= 1
            started.there.set()
            del item, started, send  # the buffer is the executor's


class _Started:
    """A send that begins as soon as those before it have."""

    def __init__(self, limit: float, late: Callable[[], Exception]) -> None:
        self._limit, self._late = limit, late
        self.there = threading.Event()
        self.pending: Pending | None = None
        self.error: BaseException | None = None

    def wait(self) -> None:
        if not self.there.wait(self._limit):
            raise self._late()
        if self.error is not None:
            raise self.error
        if self.pending is not None:
            self.pending.wait()
