"""A wire between processes, with TCP between each pair of ranks.

A wire sends slices of parameters by priority (wire.py). A message is a header (`HEADER`, which contains a
Frame) and its payload. The header BYE is the last one in its direction; a connection that closes without it
means that the process at its other end has died. The kernel's send buffer is small (send_buffer.py),
because a more urgent message cannot overtake what is in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
import time
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from raddle.transport.failure_channel import DIED
from raddle.transport.inbox import Inbox, WireFailure
from raddle.transport.listener import listen_on_network
from raddle.transport.rendezvous import MAGIC, AllGather, connect_ranks, shut_down
from raddle.transport.send_buffer import SMALLEST, SendBuffer, set_send_buffer
from raddle.transport.wire import (
    Counters,
    Frame,
    OnFailure,
    OnMessage,
    Outbox,
    check_payload,
    name_ranks,
)

HEADER = struct.Struct("<4sB3xIQQQ")  # magic, kind, item, clock, version, bytes of the payload
BYE = HEADER.pack(MAGIC, 0, 0, 0, 0, 0)
GOODBYE_SECONDS = 5.0  # after a failure: seconds for others to receive what is queued


class SocketWire:
    """One rank's end. For each peer, one thread sends and another one receives.

    all_gather: gathers an object from every rank, to exchange addresses. timeout: seconds to wait for
    another rank. host: the address that other ranks connect to; None: it is found (listener.py).
    """

    def __init__(
        self,
        rank: int,
        size: int,
        all_gather: AllGather,
        *,
        timeout: float = 300.0,
        host: str | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self.sent = {peer: 0 for peer in range(size) if peer != rank}
        self._timeout = timeout
        self._inbox, self._failure = Inbox(), WireFailure()
        self._boxes = {peer: Outbox() for peer in self.sent}  # the queue of each peer
        self._threads: dict[threading.Thread, int] = {}  # thread -> its peer
        self._lock = threading.Lock()
        self._closed_peers: set[int] = set()  # peers that have sent BYE
        self._closed = False
        # Blocking sockets need one system call for a message: the kernel waits, not Python.
        self._connections = connect_ranks(
            rank, list(self.sent), all_gather, timeout, partial(listen_on_network, host=host)
        )
        for connection in self._connections.values():
            set_send_buffer(connection, SMALLEST)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(connection)

    @property
    def counters(self) -> Counters:
        return sum((box.counters for box in self._boxes.values()), Counters())

    def expect(self, limits: Mapping[int, int]) -> None:
        self._inbox.expect(limits)

    def start(self, on_message: OnMessage, on_failure: OnFailure) -> None:
        self._failure.set_callback(on_failure)
        self._inbox.open(on_message)
        for peer in self._connections:
            for work, verb in ((self._send_queued, "to"), (self._receive_all, "from")):
                name = f"raddle wire {verb} {peer}"
                thread = threading.Thread(target=work, args=(peer,), name=name, daemon=True)
                self._threads[thread] = peer
        for thread in self._threads:
            thread.start()

    def send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        check_payload(self.rank, self.size, target, payload)
        if not self._boxes[target].put(priority, frame, payload):
            raise RuntimeError(
                self._failure.reason
                or f"rank {self.rank} cannot send the {frame} to rank {target}: "
                + ("it has itself" if self._closed else f"rank {target} has")
                + " closed the connection: close after all have synchronised"
            )
        with self._lock:
            self.sent[target] += payload.nbytes

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for box in self._boxes.values():
            box.close()
        if not self._threads:  # never started: sends only BYE, which is too short to block
            for connection in self._connections.values():
                with contextlib.suppress(OSError):
                    connection.sendall(BYE)
        self._wait_for_peers()
        self._failure.ignore_further()  # from now on this rank itself closes connections
        for connection in self._connections.values():
            shut_down(connection)  # wakes the threads that wait on it
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(GOODBYE_SECONDS)
        for connection in self._connections.values():
            connection.close()

    def _wait_for_peers(self) -> None:
        """Waits until all messages are sent and all peers have sent BYE, as they do when they get ours.

        If the connection were closed before, the peer would lose what it has not read yet.
        """
        seconds = min(self._timeout, GOODBYE_SECONDS) if self._failure.reason else self._timeout
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        this_thread = threading.current_thread()
        slow_peers = {p for t, p in self._threads.items() if t.is_alive() and t is not this_thread}
        if slow_peers:
            names = name_ranks(slow_peers)
            self._failure.report(
                f"rank {self.rank} has waited {seconds:.1f} s for {names} to take what is "
                "queued and say goodbye: see what the other side does, or set a longer time-out"
            )

    def _send_queued(self, peer: int) -> None:
        """Sends what is queued for a peer, then BYE. Runs on its own thread."""
        connection, box = self._connections[peer], self._boxes[peer]
        buffer = SendBuffer(connection)
        try:
            while (message := box.take()) is not None:
                begin = time.perf_counter()
                _write(connection, message.frame, message.payload)
                box.count_sent(message, time.perf_counter() - begin)
                buffer.adapt()
                del message  # do not keep it alive while waiting for the next
        except OSError:
            self._lose_peer(peer)
        with contextlib.suppress(OSError):  # if the peer has died, the receiving thread reports it
            connection.sendall(BYE)
            connection.shutdown(socket.SHUT_WR)

    def _receive_all(self, peer: int) -> None:
        """Receives all messages of a peer, until its BYE. Runs on its own thread."""
        header = bytearray(HEADER.size)
        try:
            while self._receive_one(peer, header):
                pass
        except _InvalidFrame as error:
            self._lose_peer(
                peer,
                f"rank {self.rank} got {error.nbytes} bytes from rank {peer} that are no frame: "
                f"{error}: see whether both run the same plan and version, and what else "
                "writes to their connection",
            )
        except OSError:
            self._lose_peer(peer)
        else:
            self._closed_peers.add(peer)
            self._boxes[peer].close()  # what is queued is still sent, then BYE

    def _receive_one(self, peer: int, header: bytearray) -> bool:
        """Receives one message; returns False if it was BYE."""
        connection = self._connections[peer]
        _read_header(connection, header)
        if header == BYE:
            return False
        _, kind, item, clock, version, nbytes = HEADER.unpack(header)
        frame = Frame(kind, item, clock, version)
        refusal = self._inbox.refusal(frame, nbytes)
        if refusal:
            raise _InvalidFrame(refusal, len(header))
        payload = torch.empty(nbytes, dtype=torch.uint8)
        _read(connection, payload)
        if self._failure.reason:
            return True  # read but ignored, so that the peer's BYE can arrive
        try:
            self._inbox.deliver(peer, frame, payload)
        except Exception as error:
            self._failure.report(
                f"rank {self.rank} could not take the {frame} from rank {peer}: {error!r}"
            )
        return True

    def _lose_peer(self, peer: int, reason: str = "") -> None:
        """Ends the connection to a peer and reports the failure. reason: empty if the connection broke."""
        if not reason:
            reason = f"rank {self.rank} has lost rank {peer}: {DIED}"
            if peer in self._closed_peers:
                reason = (
                    f"rank {self.rank} has lost rank {peer}: it closed its connection before it had taken "
                    "all: close after all have synchronised"
                )
        first = self._failure.record(reason)
        # Before the outbox closes, because the sending thread must not send BYE.
        shut_down(self._connections[peer])
        self._boxes[peer].close(drop=True)
        if first:
            self._failure.notify(reason)


class _InvalidFrame(Exception):
    """Raised if the bytes that have arrived are no valid header.

    what: says why. nbytes: how many of these bytes were read.
    """

    def __init__(self, what: str, nbytes: int) -> None:
        super().__init__(what)
        self.nbytes = nbytes


def _keep_alive(connection: socket.socket) -> None:
    """Switches TCP keep-alive on, which notices within a minute that a machine has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# Bytes of tensors and sockets

_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITE = 0x200  # PyBUF_WRITE


def _bytes_of(tensor: Tensor) -> memoryview:
    """Returns the memory of a contiguous CPU tensor of any dtype, without a copy and without numpy."""
    if not tensor.nbytes:
        return memoryview(b"")
    view: memoryview = _view(tensor.data_ptr(), tensor.nbytes, _WRITE)
    return view


def _write(connection: socket.socket, frame: Frame, payload: Tensor) -> None:
    """Sends a message. sendmsg may send only a part of it; sendall sends what is left."""
    view = _bytes_of(payload)
    header = HEADER.pack(MAGIC, frame.kind, frame.item, frame.clock, frame.version, len(view))
    sent = connection.sendmsg((header, view))
    if sent < len(header):
        connection.sendall(header[sent:])
        sent = len(header)
    if sent < len(header) + len(view):
        connection.sendall(view[sent - len(header) :])


def _read(connection: socket.socket, payload: Tensor) -> None:
    """Fills a tensor with bytes that arrive; raises ConnectionError if the connection closes before."""
    view = _bytes_of(payload)
    while view:
        got = connection.recv_into(view, 0, socket.MSG_WAITALL)
        if not got:
            raise ConnectionError
        view = view[got:]


def _read_header(connection: socket.socket, header: bytearray) -> None:
    """Reads a header. It checks the first bytes at once: invalid data may be shorter than a header."""
    filled = 0
    with memoryview(header) as view:
        while filled < len(view):
            got = connection.recv_into(view[filled:])
            if not got:
                raise ConnectionError
            filled += got
            start = min(filled, len(MAGIC))
            if view[:start] != MAGIC[:start]:
                raise _InvalidFrame(f"they begin with {bytes(view[: min(filled, 16)])!r}", filled)
