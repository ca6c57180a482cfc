"""connect_ranks: all ranks get their connections, whatever other processes send and whichever rank is slow.

Ranks are threads here, on loopback and on local sockets; a scene draws who comes late, who is held up,
and what strangers do at every door.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raddle.transport import rendezvous
from raddle.transport.listener import connect_to, listen_locally, listen_on_network
from raddle.transport.rendezvous import CONFIRM, HELLO, MAGIC, connect_ranks

PATIENCE = 0.05  # seconds: a handshake in these tests
LIMIT = 60.0  # seconds that end a hang
LISTENERS = {"network": partial(listen_on_network, host="127.0.0.1"), "local": listen_locally}


@dataclass(frozen=True)
class Stranger:
    """Connects to a rank's listener, sends something, and stays connected or not."""

    says: tuple[bytes, ...]  # one after the other
    delay: float  # seconds before each
    stays: bool
    count: int  # of them, at the same time


@dataclass(frozen=True)
class Scene:
    peers: tuple[frozenset[int], ...]  # of each rank
    before: tuple[float, ...]  # seconds for which each rank is held up before addresses are shared
    after: tuple[float, ...]  # and after that, while others call it
    strangers: tuple[tuple[Stranger, ...], ...]  # at each rank's door


HALF = HELLO.pack(MAGIC, bytes(32), 1)
WORDS = st.one_of(
    st.binary(max_size=2 * HELLO.size),
    st.sampled_from([b"5\n", '["ß", 1]\n'.encode(), b'["guess", 1]\n', b"GET / HTTP/1.1\r\n\r\n"]),
    st.integers(0, HELLO.size).map(lambda n: HALF[:n]),
    st.integers(0, 5).map(lambda rank: HELLO.pack(MAGIC, bytes(32), rank) + CONFIRM),
    st.just(b"x" * 2_000_000),  # without an end
)
STRANGERS = st.builds(
    Stranger,
    says=st.lists(WORDS, max_size=3).map(tuple),
    delay=st.sampled_from([0.0, 0.0, 0.01, 0.05]),
    stays=st.booleans(),
    count=st.sampled_from([1, 1, 1, 5, 80]),
)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    size = draw(st.integers(2, 4))
    pairs = [(a, b) for b in range(size) for a in range(b)]
    met = draw(
        st.one_of(
            st.just(pairs),  # as a wire
            st.just([(0, b) for b in range(1, size)]),  # as in the failure channel
            st.lists(st.sampled_from(pairs), unique=True),  # as between local peers
        )
    )
    peers = [frozenset({a + b - r for a, b in met if r in (a, b)}) for r in range(size)]
    held_up = st.sampled_from([0.0, 0.0, 0.02, 2 * PATIENCE, 3.5 * PATIENCE])
    return Scene(
        tuple(peers),
        tuple(draw(held_up) for _ in range(size)),
        tuple(draw(held_up) for _ in range(size)),
        tuple(tuple(draw(st.lists(STRANGERS, max_size=3))) for _ in range(size)),
    )


def visit(stranger: Stranger, address: Any, end: threading.Event) -> None:
    connections = []
    with contextlib.suppress(OSError):
        for _ in range(stranger.count):
            connections.append(connect_to(address[0][0], address[1], 1.0))
            connections[-1].settimeout(0.01)  # nobody may read what it says
    for words in stranger.says:
        end.wait(stranger.delay)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(
                    words[:100_000] if connection.family == socket.AF_UNIX else words
                )
    if stranger.stays:
        end.wait(LIMIT)
    for connection in connections:
        connection.close()


def play(scene: Scene, kind: str) -> list[dict[int, socket.socket]]:
    """Returns the connections of every rank."""
    size, end = len(scene.peers), threading.Event()
    gathered: list[Any] = [None] * size
    all_here = threading.Barrier(size)
    crowd: list[threading.Thread] = []

    def rank(r: int) -> dict[int, socket.socket]:
        def share(address: Any) -> list[Any]:
            for stranger in scene.strangers[r] if address[0] else ():
                crowd.append(threading.Thread(target=visit, args=(stranger, address, end)))
                crowd[-1].start()
            time.sleep(scene.before[r])
            gathered[r] = address
            all_here.wait(LIMIT)
            time.sleep(scene.after[r])
            return gathered

        return connect_ranks(r, scene.peers[r], share, LIMIT, LISTENERS[kind])

    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))
    finally:
        end.set()
        for thread in crowd:
            thread.join(LIMIT)


@pytest.fixture(scope="module", autouse=True)
def impatient() -> Iterator[None]:
    """Ranks retry soon, so that a slow listener gets connections that were given up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "HANDSHAKE_SECONDS", PATIENCE)
        patch.setattr(rendezvous, "RETRY_SECONDS", 0.01)
        yield


PAIR = (frozenset({1}), frozenset({0}))
SILENT = Stranger((), 0.0, stays=True, count=2)
LINES = Stranger((b"5\n",), 0.0, stays=True, count=1)
LETTERS = Stranger(('["ß", 1]\n'.encode(),), 0.0, stays=True, count=1)
CROWD = Stranger((HALF[:-1],), 0.0, stays=True, count=200)


@pytest.mark.parametrize("kind", LISTENERS)
@example(Scene(PAIR, (0.0, 0.0), (3.5 * PATIENCE, 0.0), ((), ())))
@example(Scene(PAIR, (0.0, 0.0), (0.0, 0.0), ((SILENT, LINES, LETTERS, CROWD), ())))
@given(scene=scenes())
@settings(max_examples=max(1, settings().max_examples // 2))  # each waits for slow ranks
def test_all_ranks_meet_whatever_strangers_do(kind: str, scene: Scene) -> None:
    connections = play(scene, kind)
    for rank, by_peer in enumerate(connections):
        assert by_peer.keys() == scene.peers[rank]
        for peer, connection in by_peer.items():
            connection.sendall(bytes([rank, peer]))
    for rank, by_peer in enumerate(connections):
        for peer, connection in by_peer.items():
            connection.settimeout(LIMIT)
            assert connection.recv(100) == bytes([peer, rank])  # the other end of this connection
            connection.close()


@pytest.mark.parametrize("kind", LISTENERS)
def test_who_waits_for_whom_is_said(kind: str) -> None:
    """Rank 0 never connects or replies; rank 2 has given its address and ended."""
    with LISTENERS[kind](1) as silent:
        zero = (silent.hosts, silent.port, bytes(32).hex())
        two = ([], 0, bytes(32).hex())
        with pytest.raises(TimeoutError) as raised:
            connect_ranks(1, [0, 2], lambda address: [zero, address, two], 0.3, LISTENERS[kind])
    said = str(raised.value)
    assert said.startswith("rank 1 has waited 0.3 s for ranks 0, 2 to meet it (it calls rank 0 at ")
    assert "; it listens for rank 2 at " in said


def test_a_listener_that_trickles_holds_up_nobody() -> None:
    """At the first address of rank 0 another process replies byte by byte, without end."""
    end = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = impostor.accept()[0]
                with connection:
                    while not end.wait(0.02):
                        connection.sendall(b"\0")

    with socket.create_server(("127.0.0.2", 0)) as impostor:
        port = impostor.getsockname()[1]
        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        with socket.create_server(("127.0.0.1", port)) as server:
            tokens, deadline = [bytes([1] * 32), bytes(32)], time.monotonic() + LIMIT
            hosts = ["127.0.0.2", "127.0.0.1"]
            call = rendezvous._Connector(1, 0, (hosts, port, tokens[0].hex()), tokens[1], deadline)
            accepted = rendezvous._accept_ranks(server, tokens[0], {1: tokens[1]}, deadline)
            call.join(LIMIT)
        end.set()
    assert call.connection is not None
    assert call.connection.getsockname() == accepted[1].getpeername()
    call.connection.close()
    accepted[1].close()
