"""How ranks meet: the higher of a pair calls the lower; tokens, known to ranks only, keep strangers out."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raddle.sync.door import open_door
from raddle.sync.wire import name_ranks

MAGIC = b"rdl1"
HELLO = struct.Struct("<4s32sI")  # magic, the token of the rank that listens, who calls
ANSWER = 32  # bytes: the token of the rank that calls
AGREED = b"!"  # the caller's last word: it has not given this line up
HANDSHAKE = 5.0  # seconds
STRANGERS = 64  # that may stand at the door at the same time

Address = Sequence[Any]  # hosts to try, port, token: made of what JSON knows
Share = Callable[[Address], Sequence[Address]]


def meet(
    rank: int, size: int, share: Share, timeout: float, host: str | None
) -> dict[int, socket.socket]:
    """A line to every other rank."""
    token = secrets.token_bytes(ANSWER)
    with open_door(backlog=size + STRANGERS) as server:
        hosts = [host] if host else _own_hosts()
        port = server.getsockname()[1]
        addresses = share((hosts, port, token.hex()))
        if len(addresses) != size:
            raise ValueError(f"rank {rank} got {len(addresses)} addresses for {size} ranks to meet")
        deadline = time.monotonic() + timeout
        calls = [_Call(rank, peer, addresses[peer], token, deadline) for peer in range(rank)]
        tokens = {r: bytes.fromhex(addresses[r][2]) for r in range(rank + 1, size)}
        lines = _answer(server, token, tokens, deadline)
    for call in calls:
        call.join(max(0.0, deadline - time.monotonic()))
        if call.line is not None:
            lines[call.peer] = call.line
    missing = {*range(size)} - {rank} - {*lines}
    if missing:
        for line in lines.values():
            line.close()
        raise TimeoutError(
            f"rank {rank} has waited {timeout:.1f} s for {name_ranks(missing)} to meet it (it listens at "
            f"port {port} of {', '.join(hosts)}): see what the other side does and whether it "
            "can reach that address, or set a longer time-out"
        )
    return dict(sorted(lines.items()))


def _own_hosts() -> list[str]:
    """Where others reach this rank: its address towards MASTER_ADDR.

    Where that name leads to this very machine, the name itself as well: others know it by that.
    """
    master = os.environ.get("MASTER_ADDR", "")
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(
            master or "127.0.0.1", 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing, but the kernel chooses an address of ours
            own = str(probe.getsockname()[0])
        local = own.startswith("127.") or own == "::1"
        return [own, master] if local and master not in ("", own) else [own]
    return ["127.0.0.1"]


class _Call(threading.Thread):
    """Calls a lower rank until it answers or the time is up."""

    def __init__(
        self, rank: int, peer: int, address: Address, token: bytes, deadline: float
    ) -> None:
        super().__init__(name=f"raddle wire calls {peer}", daemon=True)
        self.peer = peer
        self.line: socket.socket | None = None
        self._hosts, self._port, self._deadline = address[0], int(address[1]), deadline
        self._hello = HELLO.pack(MAGIC, bytes.fromhex(address[2]), rank)
        self._token = token
        self.start()

    def run(self) -> None:
        while True:
            for host in self._hosts:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    return
                with contextlib.suppress(OSError):
                    self.line = self._try(host, min(left, HANDSHAKE))
                if self.line is not None:
                    return
            time.sleep(0.05)

    def _try(self, host: str, seconds: float) -> socket.socket | None:
        line = socket.create_connection((host, self._port), seconds)
        try:
            line.sendall(self._hello)
            said = b""
            while len(said) < ANSWER and (piece := line.recv(ANSWER - len(said))):
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
            return True
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


def _answer(
    server: socket.socket, token: bytes, tokens: Mapping[int, bytes], deadline: float
) -> dict[int, socket.socket]:
    """The lines of the ranks that have called. Nobody who is silent holds up others."""
    lines: dict[int, socket.socket] = {}
    guests: dict[socket.socket, _Guest] = {}  # the oldest first
    server.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)

        def leave(line: socket.socket) -> None:
            selector.unregister(line)
            del guests[line]

        while len(lines) < len(tokens) and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                line = key.fileobj
                assert isinstance(line, socket.socket)
                if line is server:
                    with contextlib.suppress(OSError):
                        came = server.accept()[0]
                        came.setblocking(False)
                        guests[came] = _Guest(came)
                        selector.register(came, selectors.EVENT_READ)
                elif (guest := guests.get(line)) is None:
                    continue  # sent away a moment ago
                elif not guest.listen(token, tokens) or guest.rank in lines:
                    leave(line)
                    line.close()
                elif guest.rank is not None and guest.agreed:
                    leave(line)
                    lines[guest.rank] = line
            while len(guests) > len(tokens) + STRANGERS:
                stranger = next(iter(guests))  # a rank would call again
                leave(stranger)
                stranger.close()
    for line in guests:
        line.close()
    return lines


def hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
