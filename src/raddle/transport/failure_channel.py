"""An alarm between processes: when a rank fails or dies, all others know within milliseconds.

Every rank keeps a TCP line to rank 0 and a thread that listens on it. One message at most goes each
way: a failure, which rank 0 passes on, or a goodbye. A line that ends without either means that the
process at its other end has died: torch.distributed itself tells only those that wait for that very
process, and on NCCL nobody.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable

from raddle.transport.listener import listen_on_network
from raddle.transport.rendezvous import AllGather, connect_ranks, shut_down

DIED = "its process has ended without a word: killed, or out of memory?"
BYE = "bye\n"
MAX_REASON = 10_000  # characters of a reason


class FailureChannel:
    """One rank's end. `ring(rank, reason)` is called once, on any thread, perhaps before this returns."""

    def __init__(
        self,
        rank: int,
        size: int,
        all_gather: AllGather,
        on_failure: Callable[[int, str], None],
        timeout: float,
    ) -> None:
        self.first_failure: tuple[int, str] | None = None  # the rank that failed first, and why
        self._on_failure = on_failure
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        peers = range(1, size) if rank == 0 else [0]
        self._connections = connect_ranks(rank, peers, all_gather, timeout, listen_on_network)
        self._threads = [
            threading.Thread(target=self._listen, args=(peer,), name="raddle alarm", daemon=True)
            for peer in self._connections
        ]
        for thread in self._threads:
            thread.start()

    def wait_for_failure(self, seconds: float) -> tuple[int, str] | None:
        """The news; waits a little for them, as a broken connection is often quicker."""
        self._failed.wait(seconds)
        return self.first_failure

    def report(self, rank: int, reason: str) -> None:
        """Passes on that a rank has failed, if it is the first."""
        with self._lock:
            if self.first_failure is not None or self._closed:
                return
            # Before others of this process can see it: who does may close, and a goodbye is the last word.
            self._write(json.dumps([rank, reason[:MAX_REASON]]) + "\n")
            self.first_failure = rank, reason
        self._failed.set()
        self._on_failure(rank, reason)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._write(BYE)
        for connection in self._connections.values():
            shut_down(connection)  # wakes the listener
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)
        for connection in self._connections.values():
            connection.close()

    def _write(self, text: str) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # that rank is gone
                connection.sendall(text.encode())  # too short to block

    def _listen(self, peer: int) -> None:
        text = ""
        with contextlib.suppress(OSError), self._connections[peer].makefile() as file:
            text = file.readline()
        if text == BYE or self._closed:
            return
        rank, reason = json.loads(text) if text.endswith("\n") else (peer, DIED)
        self.report(rank, reason)
