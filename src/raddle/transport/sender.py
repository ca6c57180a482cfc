"""A thread that starts the sends of large messages, so that the caller need not wait for their copies.

Starting a send copies the message, into shared memory for example, and this takes long if it is large.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from raddle.transport.base import Pending, WaitLabel


class Sender:
    """Starts sends in the order of the calls of `start`, on its own thread.

    limit: seconds within which a send must start. timeout_error: makes the exception for a send that does
    not.
    """

    def __init__(self, limit: float, timeout_error: Callable[[WaitLabel], Exception]) -> None:
        self._limit, self._timeout_error = (
            limit,
            timeout_error,
        )
        self._queue: queue.SimpleQueue[tuple[_QueuedSend, Callable[[], Pending]] | None] = (
            queue.SimpleQueue()
        )
        self.pending_count = 0  # sends in the queue, which have not started
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="raddle sender", daemon=True)
        self._thread.start()

    def start(self, send: Callable[[], Pending], label: WaitLabel) -> Pending:
        """Queues a send, which a call of `send` starts; label: describes it in an error message."""
        queued = _QueuedSend(self._limit, lambda: self._timeout_error(label))
        with self._lock:
            self.pending_count += 1
        self._queue.put((queued, send))
        return queued

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(5)

    def _run(self) -> None:
        """Starts the queued sends, one after the other, until `close`. Runs on the thread."""
        while (item := self._queue.get()) is not None:
            queued, send = item
            try:
                queued.pending = send()
            except BaseException as error:  # _QueuedSend.wait raises it
                queued.error = error
            with self._lock:
                self.pending_count -= 1
            queued.started.set()
            del item, queued, send  # do not keep the caller's buffer alive


class _QueuedSend:
    """A send that waits for its turn."""

    def __init__(self, limit: float, timeout_error: Callable[[], Exception]) -> None:
        self._limit, self._timeout_error = limit, timeout_error
        self.started = threading.Event()
        self.pending: Pending | None = None
        self.error: BaseException | None = None

    def wait(self) -> None:
        if not self.started.wait(self._limit):
            raise self._timeout_error()
        if self.error is not None:
            raise self.error
        if self.pending is not None:
            self.pending.wait()
