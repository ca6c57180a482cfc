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
from typing import TextIO, cast

DIED = "its process has ended without a word: killed, or out of memory?"
BYE = "bye\n"
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
        self._rank = rank
        self._ring = ring
        self._rung = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        lines = _accept(size, share, timeout) if rank == 0 else {0: _connect(rank, share, timeout)}
        for line in lines.values():
            line.settimeout(None)  # silence is good news
        self._lines = {peer: (line, _file(line)) for peer, line in lines.items()}
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
        self._write(json.dumps([rank, reason]) + "\n")
        self._rung.set()
        self._ring()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._write(BYE)
        for line, _ in self._lines.values():
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # wakes the listener
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1)
        for line, _ in self._lines.values():
            line.close()

    def _write(self, text: str) -> None:
        for _, file in self._lines.values():
            with contextlib.suppress(OSError, ValueError):  # that rank is gone
                file.write(text)  # too short to ever block
                file.flush()

    def _listen(self, peer: int) -> None:
        text = ""
        with contextlib.suppress(OSError, ValueError):
            text = self._lines[peer][1].readline()
        if text == BYE or self._closed:
            return
        rank, reason = json.loads(text) if text.endswith("\n") else (peer, DIED)
        self.tell(rank, reason)


def _accept(
    size: int, share: Callable[[Address | None], Address], timeout: float
) -> dict[int, socket.socket]:
    """Rank 0's lines to all others. The token keeps strangers out."""
    token = secrets.token_hex()
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=size) as server:
        server.settimeout(timeout)
        hosts = [os.environ.get("MASTER_ADDR", "localhost"), socket.gethostname(), "localhost"]
        share((hosts, server.getsockname()[1], token))
        lines: dict[int, socket.socket] = {}
        while len(lines) < size - 1:
            line, _ = server.accept()
            line.settimeout(HANDSHAKE)
            with contextlib.suppress(OSError, ValueError), _file(line) as file:
                said, rank = json.loads(file.readline(200))
                if secrets.compare_digest(said, token):
                    file.write("welcome\n")
                    file.flush()
                    lines[rank] = line
        return lines


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
                with _file(line) as file:
                    file.write(json.dumps([token, rank]) + "\n")
                    file.flush()
                    if file.readline() == "welcome\n":
                        return line
        time.sleep(0.1)
    raise TimeoutError(
        f"rank {rank} has tried for {timeout:.3g} s to reach rank 0 at port {port} of "
        f"{', '.join(hosts)}: set MASTER_ADDR to an address of rank 0's machine"
    )


def _file(line: socket.socket) -> TextIO:
    return cast(TextIO, line.makefile("rw", encoding="utf-8", newline="\n"))
