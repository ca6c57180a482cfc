"""How ranks meet: the higher of a pair calls the lower; tokens, known to ranks only, keep strangers out.

    caller                         listener
    HELLO: listener's token, who ──▶
                                   ◀── ANSWER: the caller's token
    AGREED ────────────────────────▶

The listener keeps a line only after the last word: a caller that was kept waiting has given its line up
and calls again, and what it left behind must not be taken for it. Anybody on this machine may connect and
send nothing, half a word, or megabytes: callers are served side by side, and nobody waits for a stranger.
All lines of raddle's own begin so: those of the alarm, of the wire, and those between neighbours.
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

MAGIC = b"rdl1"
HELLO = struct.Struct("<4s32sI")  # magic, the token of the rank that listens, who calls
TOKEN_BYTES = 32  # bytes: the token of the rank that calls
CONFIRM = b"!"  # the caller's last word: it has not given this line up
HANDSHAKE_SECONDS = 5.0  # seconds for a stranger to say who it is, or for a listener to answer
MAX_UNIDENTIFIED = 64  # that may stand at the door at the same time
RETRY_SECONDS = 0.05  # seconds between two calls

Address = Sequence[Any]  # hosts to try, port, token: made of what JSON knows
AllGather = Callable[
    [Address], Sequence[Address]
]  # gives every rank's address to all, in their order
OpenListener = Callable[[int], Listener]  # opens a door with room for so many callers


def connect_ranks(
    rank: int,
    peers: Collection[int],
    all_gather: AllGather,
    timeout: float,
    open_listener: OpenListener,
) -> dict[int, socket.socket]:
    """A line to each of the peers, who count this rank among theirs. All ranks call it together."""
    token = secrets.token_bytes(TOKEN_BYTES)
    last = max([rank, *peers])
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
        where = [
            f"it calls rank {c.peer} at {c.address_text}" for c in connectors if c.peer in missing
        ]
        if silent := missing & {*higher}:
            where.append(f"it listens for {name_ranks(silent)} at {_describe_address(hosts, port)}")
        raise TimeoutError(
            f"rank {rank} has waited {timeout:.1f} s for {name_ranks(missing)} to meet it "
            f"({'; '.join(where)}): see what the other side does and whether it can be reached "
            "there (MASTER_ADDR is an address of rank 0's machine), or set a longer time-out"
        )
    for connection in connections.values():
        connection.settimeout(None)
    return dict(sorted(connections.items()))


def _describe_address(hosts: Sequence[str], port: int) -> str:
    return f"port {port} of {', '.join(hosts)}" if port else "a local socket"


class _Connector(threading.Thread):
    """Calls a lower rank until it answers or the time is up."""

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
        """The line, if the right rank answers there in time."""
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
    """Somebody at the door."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.rank: int | None = None  # once the token was right
        self.until = time.monotonic() + HANDSHAKE_SECONDS  # to say so

    def read(self, token: bytes, tokens: Mapping[int, bytes]) -> bool:
        """Reads on; False where it is a stranger, or has gone. Its last word makes it `agreed`."""
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
            return False  # a rank waits for the answer
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
    """All who stand at a door, each listened to when it says something."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._callers: dict[socket.socket, _Caller] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)

    def wait(self, deadline: float) -> list[_Caller]:
        """Those who have said something; whoever calls is let in."""
        until = min([deadline, *(g.until for g in self._unidentified()[:1])])
        readable = []
        for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._server:
                self._accept()
            elif connection in self._callers:  # not sent away a moment ago
                readable.append(self._callers[connection])
        return readable

    def _accept(self) -> None:
        try:
            connection = self._server.accept()[0]
        except BlockingIOError:
            return
        except OSError:  # it has gone, or this process has no file left
            self.drop(self._unidentified()[:1])
            time.sleep(0.001)
            return
        connection.setblocking(False)
        self._callers[connection] = _Caller(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _unidentified(self) -> list[_Caller]:
        """Those who have not said yet who they are; a rank that has is never sent away for others."""
        return [caller for caller in self._callers.values() if caller.rank is None]

    def drop_idle(self) -> None:
        """A rank among them would call again."""
        unidentified, now = self._unidentified(), time.monotonic()
        excess = max(0, len(unidentified) - MAX_UNIDENTIFIED)
        self.drop([g for n, g in enumerate(unidentified) if n < excess or g.until <= now])

    def drop(self, callers: Sequence[_Caller]) -> None:
        for caller in callers:
            self.detach(caller).close()

    def detach(self, caller: _Caller) -> socket.socket:
        """Its line, which is no longer listened to."""
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]
        return caller.connection

    def close(self) -> None:
        self.drop(list(self._callers.values()))
        self._selector.close()


def _accept_ranks(
    server: socket.socket, token: bytes, tokens: Mapping[int, bytes], deadline: float
) -> dict[int, socket.socket]:
    """The lines of the ranks that have called. Nobody who is silent holds up others."""
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
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
