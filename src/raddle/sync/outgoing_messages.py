"""Passes messages to the wire of this rank, and can wait until all of them are sent.

A wire queues messages and sends them by priority. A frame is the header of a message (transport/wire.py).
"""

from __future__ import annotations

import threading
import time

from torch import Tensor

from raddle.sync.rank_failure import RankFailure
from raddle.transport.wire import Frame, Wire

POLL = 0.0002  # seconds between two reads of the wire's counter


class OutgoingMessages:
    """Counts the messages that it passes to the wire, and compares with those that the wire has sent.

    timeout: seconds after which `wait_until_sent` fails.
    """

    def __init__(self, wire: Wire, failure: RankFailure, timeout: float) -> None:
        self._wire, self._failure, self._timeout = wire, failure, timeout
        # Messages passed to the wire so far; it begins with those that the wire sent before
        self._handed_over = wire.counters.messages
        self._lock = threading.Lock()

    def send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        """Passes a message to the wire, which sends the smallest priority first."""
        with self._lock:
            self._handed_over += 1
        self._wire.send(target, frame, payload, priority)

    def wait_until_sent(self) -> None:
        """Returns when all messages are sent; raises after a failure or a time-out."""
        begin, timeout, failure = time.perf_counter(), self._timeout, self._failure
        while (queued := self._handed_over - self._wire.counters.messages) > 0:
            failure.check()
            if time.perf_counter() - begin > timeout:
                failure.set_reason(
                    f"rank {self._wire.rank} has waited {timeout:.1f} s for {queued} messages to "
                    "leave: see what the other ranks do, or set a longer time-out",
                    TimeoutError,
                )
            time.sleep(POLL)
        failure.check()
