"""Small packets between processes of one machine: a Unix socket for each pair of ranks.

There is no receiving thread. A thread that waits for a packet reads all packets that arrive, for itself
and for other threads of its process, so a message wakes only one thread. A packet has a tag and a
content; local_peers.py puts the message into it, or the address of the message in shared memory.
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

from raddle.transport.listener import listen_locally
from raddle.transport.rendezvous import AllGather, connect_ranks

TAG = struct.Struct("<q")  # the tag, at the start of a packet
MAX_PACKET = 64 * 1024  # bytes


class LocalSockets:
    """One rank's connections to its local peers. All ranks make theirs at the same time."""

    def __init__(
        self, rank: int, peers: Collection[int], all_gather: AllGather, timeout: float
    ) -> None:
        self._connections = connect_ranks(rank, peers, all_gather, timeout, listen_locally)
        self._peer_of_descriptor = {
            connection.fileno(): peer for peer, connection in self._connections.items()
        }
        self._poll = select.poll()
        for descriptor in self._peer_of_descriptor:
            self._poll.register(descriptor, select.POLLIN)
        self._received: dict[tuple[int, int], deque[bytes]] = {}  # contents, by (source rank, tag)
        self._closed_peers: set[int] = set()
        self._changed = threading.Condition()
        self._is_reading = False  # whether a thread of this process is reading

    def send(self, target: int, tag: int, content: bytes | bytearray, timeout: float) -> None:
        """Sends a packet. While the socket is full, it reads what others send here, to avoid a deadlock."""
        connection, deadline = self._connections[target], time.monotonic() + timeout
        while True:
            try:
                connection.sendmsg((TAG.pack(tag), content), (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError from None
                self._read_once(0.001, None)
            else:
                return

    def receive(self, source: int, tag: int, timeout: float) -> bytes:
        """Returns the content of the next packet from rank `source` with this tag.

        Raises ConnectionError if the sender has closed its connection, or TimeoutError.
        """
        deadline = time.monotonic() + timeout
        while (content := self._read_once(deadline - time.monotonic(), (source, tag))) is None:
            if time.monotonic() > deadline:
                raise TimeoutError
        return content

    def _read_once(self, seconds: float, wanted: tuple[int, int] | None) -> bytes | None:
        """Returns the wanted content if it is here; else reads once, or waits for the thread that reads.

        After a read or a wait it returns None, even if the content has arrived: the next call returns it.
        wanted: (source rank, tag), or None to read only. seconds: the longest wait.
        """
        with self._changed:
            queue = self._received.get(wanted) if wanted else None
            if queue:
                return queue.popleft()
            if wanted and wanted[0] in self._closed_peers:
                raise ConnectionError(f"rank {wanted[0]} has closed its connection")
            if self._is_reading:
                self._changed.wait(max(0.0, seconds))
                return None
            self._is_reading = True
        packets: list[tuple[int, bytes | None]] = []
        try:
            packets = self._read(seconds)
        finally:
            with self._changed:
                self._is_reading = False
                for peer, packet in packets:
                    self._enqueue(peer, packet)
                self._changed.notify_all()
        return None

    def _read(self, seconds: float) -> list[tuple[int, bytes | None]]:
        """Returns (peer, packet) for all that has arrived within these seconds.

        An empty packet or None means that the connection is closed.
        """
        packets: list[tuple[int, bytes | None]] = []
        for descriptor, _ in self._poll.poll(max(0.0, 1e3 * seconds)):
            peer = self._peer_of_descriptor[descriptor]
            try:
                packets.append(
                    (peer, self._connections[peer].recv(MAX_PACKET, socket.MSG_DONTWAIT))
                )
            except BlockingIOError:
                continue
            except OSError:
                packets.append((peer, None))
        return packets

    def _enqueue(self, peer: int, packet: bytes | None) -> None:
        """Stores the content of a packet, or that the peer has closed its connection (no packet)."""
        if not packet:
            self._closed_peers.add(peer)
            with contextlib.suppress(KeyError, OSError, ValueError):
                self._poll.unregister(self._connections[peer])
            return
        (tag,) = TAG.unpack_from(packet)
        self._received.setdefault((peer, tag), deque()).append(packet[TAG.size :])

    def shut_down(self) -> None:
        """Makes all waits raise, on this rank and on peers that wait for it. Any thread may call it."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut_down()
        for connection in self._connections.values():
            connection.close()
