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

from raddle.transport.listener import network_door
from raddle.transport.rendezvous import Share, hang_up, meet

DIED = "its process has ended without a word: killed, or out of memory?"
BYE = "bye\n"
LONGEST = 10_000  # characters of a reason


class Alarm:
    """One rank's end. `ring(rank, reason)` is called once, on any thread, perhaps before this returns."""

    def __init__(
        self,
        rank: int,
        size: int,
        share: Share,
        ring: Callable[[int, str], None],
        timeout: float,
    ) -> None:
        self.news: tuple[int, str] | None = None  # the rank that failed first, and why
        self._ring = ring
        self._rung = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        peers = range(1, size) if rank == 0 else [0]
        self._lines = meet(rank, peers, share, timeout, network_door)
        self._threads = [
            threading.Thread(target=self._listen, args=(peer,), name="raddle alarm", daemon=True)
            for peer in self._lines
        ]
        for thread in self._threads:
            thread.start()

    def hear(self, seconds: float) -> tuple[int, str] | None:
        """The news; waits a little for them, as a broken connection is often quicker."""
        self._rung.wait(seconds)
        return self.news

    def tell(self, rank: int, reason: str) -> None:
        """Passes on that a rank has failed, if it is the first."""
        with self._lock:
            if self.news is not None or self._closed:
                return
            # Before others of this process can see it: who does may close, and a goodbye is the last word.
            self._write(json.dumps([rank, reason[:LONGEST]]) + "\n")
            self.news = rank, reason
        self._rung.set()
        self._ring(rank, reason)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._write(BYE)
        for line in self._lines.values():
            hang_up(line)  # wakes the listener
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)
        for line in self._lines.values():
            line.close()

    def _write(self, text: str) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError):  # that rank is gone
                line.sendall(text.encode())  # too short to block

    def _listen(self, peer: int) -> None:
        text = ""
        with contextlib.suppress(OSError), self._lines[peer].makefile() as file:
            text = file.readline()
        if text == BYE or self._closed:
            return
        rank, reason = json.loads(text) if text.endswith("\n") else (peer, DIED)
        self.tell(rank, reason)
