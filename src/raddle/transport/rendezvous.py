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

from raddle.transport.listener import Door, call_at
from raddle.transport.wire import name_ranks

MAGIC = b"rdl1"
HELLO = struct.Struct("<4s32sI")  # magic, the token of the rank that listens, who calls
ANSWER = 32  # bytes: the token of the rank that calls
AGREED = b"!"  # the caller's last word: it has not given this line up
HANDSHAKE = 5.0  # seconds for a stranger to say who it is, or for a listener to answer
STRANGERS = 64  # that may stand at the door at the same time
PAUSE = 0.05  # seconds between two calls

Address = Sequence[Any]  # hosts to try, port, token: made of what JSON knows
Share = Callable[[Address], Sequence[Address]]  # gives every rank's address to all, in their order
Open = Callable[[int], Door]  # opens a door with room for so many callers


def meet(
    rank: int, peers: Collection[int], share: Share, timeout: float, door: Open
) -> dict[int, socket.socket]:
    """A line to each of the peers, who count this rank among theirs. All ranks call it together."""
    token = secrets.token_bytes(ANSWER)
    last = max([rank, *peers])
    higher = [peer for peer in peers if peer > rank]
    with ExitStack() as stack:
        own = stack.enter_context(door(len(higher) + STRANGERS)) if higher else None
        hosts, port = (own.hosts, own.port) if own else ([], 0)
        addresses = share((hosts, port, token.hex()))
        if len(addresses) <= last:
            raise ValueError(
                f"rank {rank} got {len(addresses)} addresses for {1 + last} ranks to meet"
            )
        deadline = time.monotonic() + timeout
        calls = [_Call(rank, p, addresses[p], token, deadline) for p in peers if p < rank]
        tokens = {peer: bytes.fromhex(addresses[peer][2]) for peer in higher}
        lines = _answer(own.server, token, tokens, deadline) if own else {}
    for call in calls:
        call.join(max(0.0, deadline - time.monotonic()))
        if call.line is not None:
            lines[call.peer] = call.line
    missing = {*peers} - {*lines}
    if missing:
        for line in lines.values():
            line.close()
        where = [f"it calls rank {c.peer} at {c.place}" for c in calls if c.peer in missing]
        if silent := missing & {*higher}:
            where.append(f"it listens for {name_ranks(silent)} at {_place(hosts, port)}")
        raise TimeoutError(
            f"rank {rank} has waited {timeout:.1f} s for {name_ranks(missing)} to meet it "
            f"({'; '.join(where)}): see what the other side does and whether it can be reached "
            "there (MASTER_ADDR is an address of rank 0's machine), or set a longer time-out"
        )
    for line in lines.values():
        line.settimeout(None)
    return dict(sorted(lines.items()))


def _place(hosts: Sequence[str], port: int) -> str:
    return f"port {port} of {', '.join(hosts)}" if port else "a local socket"


class _Call(threading.Thread):
    """Calls a lower rank until it answers or the time is up."""

    def __init__(
        self, rank: int, peer: int, address: Address, token: bytes, deadline: float
    ) -> None:
        super().__init__(name=f"raddle calls {peer}", daemon=True)
        self.peer = peer
        self.line: socket.socket | None = None
        self._hosts, self._port, self._deadline = address[0], int(address[1]), deadline
        self.place = _place(self._hosts, self._port)
        self._hello = HELLO.pack(MAGIC, bytes.fromhex(address[2]), rank)
        self._token = token
        self.start()

    def run(self) -> None:
        while time.monotonic() < self._deadline:
            for host in self._hosts:
                with contextlib.suppress(OSError):
                    self.line = self._try(host, min(self._deadline, time.monotonic() + HANDSHAKE))
                if self.line is not None:
                    return
            time.sleep(max(0.0, min(PAUSE, self._deadline - time.monotonic())))

    def _try(self, host: str, until: float) -> socket.socket | None:
        """The line, if the right rank answers there in time."""
        line = call_at(host, self._port, until - time.monotonic())
        try:
            line.sendall(self._hello)
            said = b""
            while self._token.startswith(said) and len(said) < ANSWER:
                line.settimeout(max(0.001, until - time.monotonic()))
                piece = line.recv(ANSWER - len(said))
                if not piece:
                    break
                said += piece
            if secrets.compare_digest(said, self._token):
                line.sendall(AGREED)
                return line
        except OSError:
            pass
        line.close()
        return None


class _Guest:
    """Somebody at the door."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.heard = b""
        self.rank: int | None = None  # once the token was right
        self.until = time.monotonic() + HANDSHAKE  # to say so

    def listen(self, token: bytes, tokens: Mapping[int, bytes]) -> bool:
        """Reads on; False where it is a stranger, or has gone. Its last word makes it `agreed`."""
        try:
            piece = self.line.recv(HELLO.size + len(AGREED) - len(self.heard))
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.heard += piece
        if not piece:
            return False
        if self.rank is not None:
            return self.agreed
        if len(self.heard) < HELLO.size:
            return MAGIC.startswith(self.heard[: len(MAGIC)])
        if len(self.heard) > HELLO.size:
            return False  # a rank waits for the answer
        magic, said, rank = HELLO.unpack(self.heard)
        if magic != MAGIC or not secrets.compare_digest(said, token) or rank not in tokens:
            return False
        self.rank = rank
        try:
            return self.line.send(tokens[rank]) == ANSWER
        except OSError:
            return False

    @property
    def agreed(self) -> bool:
        return self.heard[HELLO.size :] == AGREED


class _Guests:
    """All who stand at a door, each listened to when it says something."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._guests: dict[socket.socket, _Guest] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)

    def wait(self, deadline: float) -> list[_Guest]:
        """Those who have said something; whoever calls is let in."""
        until = min([deadline, *(g.until for g in self._strangers()[:1])])
        speaking = []
        for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
            line = key.fileobj
            assert isinstance(line, socket.socket)
            if line is self._server:
                self._let_in()
            elif line in self._guests:  # not sent away a moment ago
                speaking.append(self._guests[line])
        return speaking

    def _let_in(self) -> None:
        try:
            line = self._server.accept()[0]
        except BlockingIOError:
            return
        except OSError:  # it has gone, or this process has no file left
            self.send_away(self._strangers()[:1])
            time.sleep(0.001)
            return
        line.setblocking(False)
        self._guests[line] = _Guest(line)
        self._selector.register(line, selectors.EVENT_READ)

    def _strangers(self) -> list[_Guest]:
        """Those who have not said yet who they are; a rank that has is never sent away for others."""
        return [guest for guest in self._guests.values() if guest.rank is None]

    def send_away_idle(self) -> None:
        """A rank among them would call again."""
        strangers, now = self._strangers(), time.monotonic()
        crowd = max(0, len(strangers) - STRANGERS)
        self.send_away([g for n, g in enumerate(strangers) if n < crowd or g.until <= now])

    def send_away(self, guests: Sequence[_Guest]) -> None:
        for guest in guests:
            self.take(guest).close()

    def take(self, guest: _Guest) -> socket.socket:
        """Its line, which is no longer listened to."""
        self._selector.unregister(guest.line)
        del self._guests[guest.line]
        return guest.line

    def close(self) -> None:
        self.send_away(list(self._guests.values()))
        self._selector.close()


def _answer(
    server: socket.socket, token: bytes, tokens: Mapping[int, bytes], deadline: float
) -> dict[int, socket.socket]:
    """The lines of the ranks that have called. Nobody who is silent holds up others."""
    lines: dict[int, socket.socket] = {}
    server.setblocking(False)
    with contextlib.closing(_Guests(server)) as guests:
        while len(lines) < len(tokens) and time.monotonic() < deadline:
            for guest in guests.wait(deadline):
                if not guest.listen(token, tokens) or guest.rank in lines:
                    guests.send_away([guest])
                elif guest.rank is not None and guest.agreed:
                    lines[guest.rank] = guests.take(guest)
            guests.send_away_idle()
    return lines


def hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
