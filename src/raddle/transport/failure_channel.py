"""The failure channel between processes: if a rank fails or dies, all other ranks know within milliseconds.

Every rank has a TCP connection to rank 0 and a thread that listens on it. At most one message goes in
each direction: a failure, which rank 0 forwards to all, or a goodbye. If a connection closes without a
message, the process at its other end has died. torch.distributed itself informs only ranks that wait for
the dead process, and with NCCL none.
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
MAX_REASON = 10_000  # characters of a reason that are sent


class FailureChannel:
    """One rank's end of the failure channel.

    all_gather: gathers an object from every rank, to exchange addresses. timeout: seconds to connect.
    on_failure(rank, reason): called once, on any thread, perhaps before __init__ returns.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        all_gather: AllGather,
        on_failure: Callable[[int, str], None],
        timeout: float,
    ) -> None:
        self.first_failure: tuple[int, str] | None = None  # rank and reason
        self._on_failure = on_failure
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        peers = range(1, size) if rank == 0 else [0]
        self._connections = connect_ranks(rank, peers, all_gather, timeout, listen_on_network)
        self._threads = [
            threading.Thread(target=self._listen, args=(peer,), name="raddle failures", daemon=True)
            for peer in self._connections
        ]
        for thread in self._threads:
            thread.start()

    def wait_for_failure(self, seconds: float) -> tuple[int, str] | None:
        """Waits at most `seconds` for the report of a failure, and returns it; None: there is none."""
        self._failed.wait(seconds)
        return self.first_failure

    def report(self, rank: int, reason: str) -> None:
        """Reports to the other ranks that a rank has failed, if it is the first failure."""
        with self._lock:
            if self.first_failure is not None or self._closed:
                return
            # Sent before other threads can see the failure: they may call close, which sends the goodbye.
            self._write(json.dumps([rank, reason[:MAX_REASON]]) + "\n")
            self.first_failure = rank, reason
        self._failed.set()
        self._on_failure(rank, reason)

    def close(self) -> None:
        """Says goodbye to the peers, and ends connections and threads; more calls do nothing."""
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
                connection.sendall(text.encode())  # so short that it does not block

    def _listen(self, peer: int) -> None:
        """Waits for the one message of a peer. `report` passes a failure on to all connections."""
        text = ""
        with contextlib.suppress(OSError), self._connections[peer].makefile() as file:
            text = file.readline()
        if text == BYE or self._closed:
            return
        rank, reason = json.loads(text) if text.endswith("\n") else (peer, DIED)
        self.report(rank, reason)
