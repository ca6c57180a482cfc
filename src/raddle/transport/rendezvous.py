"""Connects ranks by sockets: of two ranks, the higher one connects to the lower one, which listens.

Secret tokens, which only the ranks know, keep other processes out. Each connection begins with a handshake:

    caller (higher rank)                      listener (lower rank)
    HELLO: listener's token, caller's rank ──▶
                                           ◀──    the caller's token
    CONFIRM                                ──▶

The listener keeps a connection only after CONFIRM: a caller that had to wait too long has given up this
connection and connects again. Any process of this machine may connect and send nothing, half a message,
or megabytes; so the listener reads from all callers at the same time and waits for none of them. All of
raddle's own connections begin in this way: those of the failure channel, the wire and the local sockets.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from raddle.transport.listener import Listener, connect_to
from raddle.transport.wire import name_ranks

MAGIC = b"rdl1"  # handshakes and messages of a wire begin with it
HELLO = struct.Struct("<4s32sI")  # magic, the listener's token, the caller's rank
TOKEN_BYTES = 32
CONFIRM = b"!"  # the caller still uses this connection
HANDSHAKE_SECONDS = 5.0  # for a caller to identify itself, and for a listener to reply
MAX_UNIDENTIFIED = 64  # callers that have not sent a token yet
RETRY_SECONDS = 0.05  # between two attempts to connect

Address = Sequence[Any]  # (hosts to try, port, token in hexadecimal)
AllGather = Callable[[Address], Sequence[Address]]  # gathers all ranks' addresses
OpenListener = Callable[[int], Listener]  # its argument: how many callers may queue


def connect_ranks(
    rank: int,
    peers: Collection[int],
    all_gather: AllGather,
    timeout: float,
    open_listener: OpenListener,
) -> dict[int, socket.socket]:
    """Returns a connection to each of the peers, by rank. All ranks of the job call it at the same time.

    If rank b is among the peers of rank a, then a is among those of b. all_gather: exchanges addresses.
    timeout: seconds until it raises TimeoutError. open_listener: opens the listening socket.
    """
    token = secrets.token_bytes(TOKEN_BYTES)
    last = max([rank, *peers])  # the highest rank
    higher = [peer for peer in peers if peer > rank]
    with ExitStack() as stack:
        listener = (
            stack.enter_context(open_listener(len(higher) + MAX_UNIDENTIFIED)) if higher else None
        )
        hosts, port = (listener.hosts, listener.port) if listener else ([], 0)
        addresses = all_gather((hosts, port, token.hex()))
        if len(addresses) <= last:
            raise ValueError(
                f"rank {rank} got {len(addresses)} addresses for {1 + last} ranks to meet"
            )
        deadline = time.monotonic() + timeout
        connectors = [_Connector(rank, p, addresses[p], token, deadline) for p in peers if p < rank]
        tokens = {peer: bytes.fromhex(addresses[peer][2]) for peer in higher}
        connections = _accept_ranks(listener.server, token, tokens, deadline) if listener else {}
    for connector in connectors:
        connector.join(max(0.0, deadline - time.monotonic()))
        if connector.connection is not None:
            connections[connector.peer] = connector.connection
    missing = {*peers} - {*connections}
    if missing:
        for connection in connections.values():
            connection.close()
        attempts = [
            f"it calls rank {c.peer} at {c.address_text}" for c in connectors if c.peer in missing
        ]
        if silent := missing & {*higher}:
            address_text = _describe_address(hosts, port)
            attempts.append(f"it listens for {name_ranks(silent)} at {address_text}")
        raise TimeoutError(
            f"rank {rank} has waited {timeout:.1f} s for {name_ranks(missing)} to meet it "
            f"({'; '.join(attempts)}): see what the other side does and whether it can be reached "
            "there (MASTER_ADDR is an address of rank 0's machine), or set a longer time-out"
        )
    for connection in connections.values():
        connection.settimeout(None)
    return dict(sorted(connections.items()))


def _describe_address(hosts: Sequence[str], port: int) -> str:
    return f"port {port} of {', '.join(hosts)}" if port else "a local socket"


class _Connector(threading.Thread):
    """A thread that tries to connect to a lower rank until it replies or the time is up.

    address: of the peer. token: of this rank, which the peer must send.
    """

    def __init__(
        self, rank: int, peer: int, address: Address, token: bytes, deadline: float
    ) -> None:
        super().__init__(name=f"raddle calls {peer}", daemon=True)
        self.peer = peer
        self.connection: socket.socket | None = None
        self._hosts, self._port, self._deadline = address[0], int(address[1]), deadline
        self.address_text = _describe_address(self._hosts, self._port)
        self._hello = HELLO.pack(MAGIC, bytes.fromhex(address[2]), rank)
        self._token = token
        self.start()

    def run(self) -> None:
        while time.monotonic() < self._deadline:
            for host in self._hosts:
                with contextlib.suppress(OSError):
                    self.connection = self._try(
                        host, min(self._deadline, time.monotonic() + HANDSHAKE_SECONDS)
                    )
                if self.connection is not None:
                    return
            time.sleep(max(0.0, min(RETRY_SECONDS, self._deadline - time.monotonic())))

    def _try(self, host: str, until: float) -> socket.socket | None:
        """Returns the connection if the right rank replies before the time `until`, else None."""
        connection = connect_to(host, self._port, until - time.monotonic())
        try:
            connection.sendall(self._hello)
            reply = b""
            while self._token.startswith(reply) and len(reply) < TOKEN_BYTES:
                connection.settimeout(max(0.001, until - time.monotonic()))
                piece = connection.recv(TOKEN_BYTES - len(reply))
                if not piece:
                    break
                reply += piece
            if secrets.compare_digest(reply, self._token):
                connection.sendall(CONFIRM)
                return connection
        except OSError:
            pass
        connection.close()
        return None


class _Caller:
    """A process that has connected. It may be a rank or something else."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.rank: int | None = None  # set when it has sent the right token
        self.until = time.monotonic() + HANDSHAKE_SECONDS  # its deadline for the token

    def read(self, token: bytes, tokens: Mapping[int, bytes]) -> bool:
        """Reads what the caller has sent; returns False if it is no rank, or has closed the connection.

        token: of this rank. tokens: of the ranks that may connect. CONFIRM makes the caller `confirmed`.
        """
        try:
            piece = self.connection.recv(HELLO.size + len(CONFIRM) - len(self.received))
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.received += piece
        if not piece:
            return False
        if self.rank is not None:
            return self.confirmed
        if len(self.received) < HELLO.size:
            return MAGIC.startswith(self.received[: len(MAGIC)])
        if len(self.received) > HELLO.size:
            return False  # a rank would wait for the reply
        magic, claimed_token, rank = HELLO.unpack(self.received)
        if magic != MAGIC or not secrets.compare_digest(claimed_token, token) or rank not in tokens:
            return False
        self.rank = rank
        try:
            return self.connection.send(tokens[rank]) == TOKEN_BYTES
        except OSError:
            return False

    @property
    def confirmed(self) -> bool:
        return self.received[HELLO.size :] == CONFIRM


class _Callers:
    """All callers of a listening socket."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._callers: dict[socket.socket, _Caller] = {}  # by connection, the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)

    def wait(self, deadline: float) -> list[_Caller]:
        """Accepts new callers, and returns the callers that have sent something.

        It waits for them until the deadline, or until the oldest unidentified caller is too slow.
        """
        until = min([deadline, *(caller.until for caller in self._unidentified()[:1])])
        readable = []
        for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._server:
                self._accept()
            elif connection in self._callers:  # not dropped a moment ago
                readable.append(self._callers[connection])
        return readable

    def _accept(self) -> None:
        """Accepts one caller, if it is still there."""
        try:
            connection = self._server.accept()[0]
        except BlockingIOError:
            return
        except OSError:  # the caller has gone, or this process has too many open files
            self.drop(self._unidentified()[:1])
            time.sleep(0.001)
            return
        connection.setblocking(False)
        self._callers[connection] = _Caller(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _unidentified(self) -> list[_Caller]:
        """Returns the callers that have not sent a token yet: only they are dropped to make room."""
        return [caller for caller in self._callers.values() if caller.rank is None]

    def drop_idle(self) -> None:
        """Drops unidentified callers if they are too many or too slow. A rank among them will try again."""
        unidentified, now = self._unidentified(), time.monotonic()
        excess = max(0, len(unidentified) - MAX_UNIDENTIFIED)
        self.drop([c for n, c in enumerate(unidentified) if n < excess or c.until <= now])

    def drop(self, callers: Sequence[_Caller]) -> None:
        for caller in callers:
            self.detach(caller).close()

    def detach(self, caller: _Caller) -> socket.socket:
        """Returns a caller's connection, and forgets the caller."""
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]
        return caller.connection

    def close(self) -> None:
        self.drop(list(self._callers.values()))
        self._selector.close()


def _accept_ranks(
    server: socket.socket, token: bytes, tokens: Mapping[int, bytes], deadline: float
) -> dict[int, socket.socket]:
    """Returns the connections of the ranks that connected until the deadline, by rank.

    token: of this rank. tokens: of the ranks that are to connect.
    """
    connections: dict[int, socket.socket] = {}
    server.setblocking(False)
    with contextlib.closing(_Callers(server)) as callers:
        while len(connections) < len(tokens) and time.monotonic() < deadline:
            for caller in callers.wait(deadline):
                if not caller.read(token, tokens) or caller.rank in connections:
                    callers.drop([caller])
                elif caller.rank is not None and caller.confirmed:
                    connections[caller.rank] = callers.detach(caller)
            callers.drop_idle()
    return connections


def shut_down(connection: socket.socket) -> None:
    """Ends a connection in both directions, which wakes threads that wait on it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
