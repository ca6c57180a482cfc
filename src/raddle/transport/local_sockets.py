"""Words between processes of one machine: a local socket for each pair, read by whoever waits.

No thread stands between: the one that waits for a message reads what there is, for itself and for others
of its process, so that a message costs one waking up. A word says where in shared memory its message lies,
or brings it along if it is short.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Collection

from raddle.transport.listener import local_door
from raddle.transport.rendezvous import Share, meet

HEAD = struct.Struct("<q")  # tag
LONGEST = 64 * 1024  # bytes of a word


class Words:
    """One rank's lines to its neighbours. All ranks make theirs at the same time."""

    def __init__(self, rank: int, near: Collection[int], share: Share, timeout: float) -> None:
        self._lines = meet(rank, near, share, timeout, local_door)
        self._ranks = {line.fileno(): peer for peer, line in self._lines.items()}
        self._poll = select.poll()
        for number in self._ranks:
            self._poll.register(number, select.POLLIN)
        self._here: dict[tuple[int, int], deque[bytes]] = {}  # by source and tag
        self._gone: set[int] = set()
        self._change = threading.Condition()
        self._reading = False  # whether a thread reads for all

    def send(self, target: int, tag: int, word: bytes | bytearray, timeout: float) -> None:
        """Returns when it is on its way. While the line is full, what others send here is read."""
        line, deadline = self._lines[target], time.monotonic() + timeout
        while True:
            try:
                line.sendmsg((HEAD.pack(tag), word), (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError from None
                self._read_once(0.001, None)
            else:
                return

    def take(self, source: int, tag: int, timeout: float) -> bytes:
        """The next word of a tag; ConnectionError where its sender is gone, or TimeoutError."""
        deadline = time.monotonic() + timeout
        while (word := self._read_once(deadline - time.monotonic(), (source, tag))) is None:
            if time.monotonic() > deadline:
                raise TimeoutError
        return word

    def _read_once(self, seconds: float, wanted: tuple[int, int] | None) -> bytes | None:
        """What is wanted, if it is here; else waits for one thread of the process to read something."""
        with self._change:
            waiting = self._here.get(wanted) if wanted else None
            if waiting:
                return waiting.popleft()
            if wanted and wanted[0] in self._gone:
                raise ConnectionError(f"rank {wanted[0]} has closed its line")
            if self._reading:
                self._change.wait(max(0.0, seconds))
                return None
            self._reading = True
        found: list[tuple[int, bytes | None]] = []
        try:
            found = self._read(seconds)
        finally:
            with self._change:
                self._reading = False
                for peer, packet in found:
                    self._store(peer, packet)
                self._change.notify_all()
        return None

    def _read(self, seconds: float) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        for number, _ in self._poll.poll(max(0.0, 1e3 * seconds)):
            peer = self._ranks[number]
            try:
                found.append((peer, self._lines[peer].recv(LONGEST, socket.MSG_DONTWAIT)))
            except BlockingIOError:
                continue
            except OSError:
                found.append((peer, None))
        return found

    def _store(self, peer: int, packet: bytes | None) -> None:
        if not packet:
            self._gone.add(peer)
            with contextlib.suppress(KeyError, OSError, ValueError):
                self._poll.unregister(self._lines[peer])
            return
        (tag,) = HEAD.unpack_from(packet)
        self._here.setdefault((peer, tag), deque()).append(packet[HEAD.size :])

    def hang_up(self) -> None:
        """Whoever waits here, or for this rank, hears of it; on any thread."""
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        for line in self._lines.values():
            line.close()
