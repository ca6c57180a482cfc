"""An alarm between processes: when a rank fails or dies, all others know within milliseconds.

Every rank keeps a TCP line to rank 0 and a thread that listens on it. One message at most goes each
way: a failure, which rank 0 passes on, or a goodbye. A line that ends without either means that the
process at its other end has died: torch.distributed itself tells only those that wait for that very
process, and on NCCL nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

from raddle.sync.door import open_door

DIED = "its process has ended without a word: killed, or out of memory?"
BYE = "bye\n"
WELCOME = b"welcome\n"
LONGEST = 10_000  # characters of a reason
HANDSHAKE = 5.0  # seconds

Address = tuple[list[str], int, str]  # hosts to try, port, token


class Alarm:
    """One rank's end. `share` gives rank 0's address to all; `ring` is called once, on any thread."""

    def __init__(
        self,
        rank: int,
        size: int,
        share: Callable[[Address | None], Address],
        ring: Callable[[], None],
        timeout: float,
    ) -> None:
        self.news: tuple[int, str] | None = None  # the rank that failed first, and why
        self._ring = ring
        self._rung = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        lines = _accept(size, share, timeout) if rank == 0 else {0: _connect(rank, share, timeout)}
        for line in lines.values():
            line.settimeout(None)  # silence is good news
        self._lines = lines
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
            self.news = rank, reason
        self._write(json.dumps([rank, reason[:LONGEST]]) + "\n")
        self._rung.set()
        self._ring()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._write(BYE)
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # wakes the listener
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


def _accept(
    size: int, share: Callable[[Address | None], Address], timeout: float
) -> dict[int, socket.socket]:
    """Rank 0's lines to all others. The token keeps strangers out."""
    token = secrets.token_hex()
    with open_door(backlog=size) as server:
        server.settimeout(timeout)
        hosts = [os.environ.get("MASTER_ADDR", "localhost"), socket.gethostname(), "localhost"]
        share((hosts, server.getsockname()[1], token))
        lines: dict[int, socket.socket] = {}
        while len(lines) < size - 1:
            try:
                line, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(str(r) for r in range(1, size) if r not in lines)
                raise TimeoutError(
                    f"rank 0 has waited {timeout:.1f} s for ranks {missing} at port "
                    f"{server.getsockname()[1]}: see what they do, or set a longer time-out"
                ) from None
            line.settimeout(HANDSHAKE)
            rank = _welcome(line, token)
            if rank is None:
                line.close()
            else:
                lines[rank] = line
        return lines


def _welcome(line: socket.socket, token: str) -> int | None:
    with contextlib.suppress(OSError, ValueError), line.makefile() as file:
        said, rank = json.loads(file.readline(200))
        if secrets.compare_digest(said, token):
            line.sendall(WELCOME)
            return int(rank)
    return None


def _connect(
    rank: int, share: Callable[[Address | None], Address], timeout: float
) -> socket.socket:
    """The line to rank 0, at the first of its addresses that answers."""
    hosts, port, token = share(None)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for host in hosts:
            with contextlib.suppress(OSError):
                line = socket.create_connection((host, port), HANDSHAKE)
                line.sendall(json.dumps([token, rank]).encode() + b"\n")
                if line.recv(len(WELCOME)) == WELCOME:
                    return line
                line.close()
        time.sleep(0.1)
    raise TimeoutError(
        f"rank {rank} has tried for {timeout:.1f} s to reach rank 0 at port {port} of "
        f"{', '.join(hosts)}: set MASTER_ADDR to an address of rank 0's machine"
    )
