"""Wires: the same scenes in memory and over sockets, then failures that only sockets have."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from timeouts import HANG
from torch import Tensor

from raddle.transport import rendezvous
from raddle.transport.listener import open_server_socket, reachable_hosts
from raddle.transport.memory_wire import memory_wires
from raddle.transport.rendezvous import HELLO, MAGIC
from raddle.transport.send_buffer import SMALLEST
from raddle.transport.socket_wire import BYE, HEADER, SocketWire
from raddle.transport.wire import PULL, PUSH, Counters, Frame, Outbox, Wire, name_ranks

MB = 1_000_000
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn,
]  # fmt: skip


class Ranks:
    """An all-gather between threads."""

    def __init__(self, size: int) -> None:
        self._given: list[Any] = [None] * size
        self._all_here = threading.Barrier(size)

    def share(self, rank: int) -> Callable[[Any], list[Any]]:
        def share(address: Any) -> list[Any]:
            self._given[rank] = json.loads(json.dumps(address))
            self._all_here.wait(HANG)
            return self._given

        return share


def together(size: int, work: Callable[[int], Any]) -> list[Any]:
    """Returns the result of `work(rank)` on each rank, or the error that it raises."""

    def safely(rank: int) -> Any:
        try:
            return work(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(safely, range(size)))


def socket_wires(size: int, **more: Any) -> list[SocketWire]:
    ranks = Ranks(size)
    wires = together(
        size,
        lambda r: SocketWire(r, size, ranks.share(r), timeout=HANG, host="127.0.0.1", **more),
    )
    for wire in wires:
        assert isinstance(wire, SocketWire), wire
    return wires


class End:
    """A rank that records its messages and failures; it receives nothing while its gate is closed."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.got: list[tuple[int, Frame, Tensor]] = []
        self.failures: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.changed = threading.Condition()

    def start(self) -> End:
        self.wire.start(self.arrive, self.fail)
        return self

    def arrive(self, source: int, frame: Frame, payload: Tensor) -> None:
        assert self.gate.wait(HANG)
        with self.changed:
            self.got.append((source, frame, payload))
            self.changed.notify_all()

    def fail(self, reason: str) -> None:
        with self.changed:
            self.failures.append(reason)
            self.changed.notify_all()

    def wait(self, *, got: int = 0, failures: int = 0) -> None:
        with self.changed:
            done = self.changed.wait_for(
                lambda: len(self.got) >= got and len(self.failures) >= failures, HANG
            )
            assert done, (len(self.got), self.failures)


Join = Callable[..., list[End]]


@pytest.fixture
def opened() -> Iterator[list[End]]:
    """Makes ends that are closed after the test, and checks that their threads have ended."""
    ends: list[End] = []
    yield ends
    for end in ends:
        end.gate.set()
    together(max(1, len(ends)), lambda i: ends[i].wire.close() if ends else None)
    for thread in threading.enumerate():
        if thread.name.startswith("raddle wire"):
            thread.join(HANG)
            assert not thread.is_alive(), thread.name


@pytest.fixture(params=["memory", "sockets"])
def join(request: pytest.FixtureRequest, opened: list[End]) -> Join:
    def join(size: int, **more: Any) -> list[End]:
        make: Any = memory_wires if request.param == "memory" else socket_wires
        ends = [End(wire) for wire in make(size, **more)]
        opened.extend(ends)
        return ends

    return join


@pytest.fixture
def socket_ends(opened: list[End]) -> Join:
    """Starts ranks with sockets."""

    def socket_ends(size: int, **more: Any) -> list[End]:
        ends = [End(wire).start() for wire in socket_wires(size, **more)]
        opened.extend(ends)
        return ends

    return socket_ends


def connection(end: End, peer: int) -> socket.socket:
    assert isinstance(end.wire, SocketWire)
    return end.wire._connections[peer]


# Order


def test_the_most_urgent_leaves_first_while_the_connection_is_blocked(join: Join) -> None:
    a, b = join(2)
    if isinstance(b.wire, SocketWire):  # or the kernel may take all of it
        connection(b, 0).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    b.gate.clear()
    a.start()
    b.start()
    plug = torch.zeros(8 * MB, dtype=torch.uint8)
    a.wire.send(1, Frame(PUSH, 99, 0), plug[:1], -1)  # blocks whoever takes it
    a.wire.send(1, Frame(PUSH, 99, 1), plug, -1)  # blocks who sends it
    priorities = [3, 1, 2, 1, 3, 2]
    for i, priority in enumerate(priorities):
        a.wire.send(1, Frame(PUSH, i, 1), torch.tensor([i]), priority)
    b.gate.set()
    b.wait(got=8)
    assert [frame.item for _, frame, _ in b.got] == [99, 99, 1, 3, 2, 5, 0, 4]
    assert [int(p.view(torch.int64)) for _, _, p in b.got[2:]] == [1, 3, 2, 5, 0, 4]
    a.wire.close()  # only then all is counted
    counters = a.wire.counters
    assert counters.overtaken == 4  # 1, 3 and 2 before 0; 5 before 0 and 4
    assert (counters.messages, counters.bytes) == (8, 8 * MB + 1 + 6 * 8)
    assert 6 <= counters.longest <= 8
    assert counters.busy > 0
    assert a.wire.sent == {1: 8 * MB + 1 + 6 * 8}
    assert not a.failures
    assert not b.failures


def test_what_is_queued_before_the_start_leaves_in_order(join: Join) -> None:
    a, b = join(2)
    for clock, priority in enumerate([0, 5, -5, 0]):
        a.wire.send(1, Frame(PULL, 0, clock, version=7), torch.ones(3), priority)
    b.start()
    a.start()
    b.wait(got=4)
    assert [frame for _, frame, _ in b.got] == [Frame(PULL, 0, c, 7) for c in (2, 0, 3, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_an_outbox_is_a_stable_sort_and_counts_who_overtakes(seed: int) -> None:
    dice, box = random.Random(seed), Outbox()
    waiting: list[tuple[int, int]] = []
    overtaken = longest = 0
    for order in range(200):
        priority = dice.randrange(4)
        box.put(priority, Frame(PUSH, 0, order), torch.empty(0))
        waiting.append((priority, order))
        longest = max(longest, len(waiting))
        while waiting and (dice.random() < 0.45 or order == 199):
            first = min(waiting)
            waiting.remove(first)
            overtaken += any(other < first[1] for _, other in waiting)
            letter = box.take()
            assert letter is not None
            assert (letter.priority, letter.frame.clock) == first
    assert (box.counters.overtaken, box.counters.longest) == (overtaken, longest)
    assert overtaken > 0
    box.close()
    assert box.take() is None
    assert not box.put(0, Frame(PUSH, 0, 0), torch.empty(0))


def test_nothing_overtakes_where_all_is_equally_urgent(join: Join) -> None:
    a, b = join(2)
    for clock in range(50):
        a.wire.send(1, Frame(PUSH, 0, clock), torch.ones(10), 3)
    a.start()
    b.start()
    b.wait(got=50)
    assert [frame.clock for _, frame, _ in b.got] == list(range(50))
    assert a.wire.counters.overtaken == 0


# What is carried


def sample(dtype: torch.dtype, elements: int) -> Tensor:
    top = 2 if dtype == torch.bool else 256
    data = torch.randint(0, top, (elements * torch.empty(0, dtype=dtype).element_size(),))
    return data.to(torch.uint8).view(dtype)


def test_all_types_and_sizes_arrive_as_they_left(join: Join) -> None:
    a, b = (end.start() for end in join(2))
    payloads = [sample(dtype, n) for dtype in DTYPES for n in (0, 1, 1001)]
    payloads += [
        torch.tensor(2.5),
        torch.nn.Parameter(torch.rand(3, 4, 5)),
        torch.rand(10, 7)[3:6],
        torch.rand(2_000_000),
        torch.empty(0, 5),
    ]
    for i, payload in enumerate(payloads):
        a.wire.send(1, Frame(PUSH, i, 2**40 + i, 2**41), payload, 0)
    b.wait(got=len(payloads))
    for i, (source, frame, got) in enumerate(b.got):
        assert (source, frame) == (0, Frame(PUSH, i, 2**40 + i, 2**41))
        assert (got.dtype, got.ndim) == (torch.uint8, 1)
        assert torch.equal(got, flat(payloads[i]))


def flat(tensor: Tensor) -> Tensor:
    """Returns a tensor's bytes through numpy, which the wires do not use."""
    data = tensor.detach().reshape(-1)
    if not data.numel():
        return torch.empty(0, dtype=torch.uint8)
    return torch.tensor(data.view(torch.uint8).numpy())


def test_what_arrived_is_the_takers_own(join: Join) -> None:
    a, b = (end.start() for end in join(2))
    payload = torch.ones(1000)
    a.wire.send(1, Frame(PUSH, 0, 1), payload, 0)
    b.wait(got=1)
    payload.zero_()
    a.wire.send(1, Frame(PUSH, 0, 2), payload, 0)
    b.wait(got=2)
    assert [float(got.view(torch.float32).sum()) for _, _, got in b.got] == [1000.0, 0.0]


def test_both_directions_at_once(join: Join) -> None:
    ends = [end.start() for end in join(2)]
    payloads = [torch.rand(MB // 4) for _ in range(40)]
    for clock, payload in enumerate(payloads):
        ends[0].wire.send(1, Frame(PUSH, 0, clock), payload, clock)
        ends[1].wire.send(0, Frame(PULL, 0, clock), payload, clock)
    for rank, end in enumerate(ends):
        end.wait(got=40)
        for source, frame, got in end.got:
            assert (source, frame.kind) == (1 - rank, (PULL, PUSH)[rank])
            assert torch.equal(got.view(torch.float32), payloads[frame.clock])


def test_peers_are_heard_at_the_same_time(join: Join) -> None:
    """Rank 0 accepts a message of rank 1 only after one of rank 2."""
    ends = join(3)
    first, second = threading.Event(), threading.Event()
    sources: list[int] = []

    def arrive(source: int, frame: Frame, payload: Tensor) -> None:
        if source == 1:
            first.set()
            assert second.wait(HANG)
        sources.append(source)
        if source == 2:
            second.set()

    ends[0].wire.start(arrive, ends[0].fail)
    for end in ends[1:]:
        end.start()
    ends[1].wire.send(0, Frame(PUSH, 0, 1), torch.ones(1), 0)
    assert first.wait(HANG)
    ends[2].wire.send(0, Frame(PUSH, 0, 1), torch.ones(1), 0)
    ends[1].wire.close()
    assert sources == [2, 1]
    assert not ends[0].failures


@pytest.mark.parametrize(
    ("target", "payload", "sentence"),
    [
        (0, torch.ones(1), "rank 0 cannot send to rank 0: choose another of 2 ranks"),
        (2, torch.ones(1), "rank 0 cannot send to rank 2"),
        (1, torch.ones(4, 4).t()[1:], r"strides \(1, 4\): hand over a contiguous one on the CPU"),
        (1, torch.ones(4, device="meta"), "cannot send a meta tensor"),
    ],
)
def test_what_cannot_be_sent(join: Join, target: int, payload: Tensor, sentence: str) -> None:
    a, _ = join(2)
    with pytest.raises(ValueError, match=sentence):
        a.wire.send(target, Frame(PUSH, 0, 1), payload, 0)


# Ends


def test_close_sends_what_is_queued(join: Join) -> None:
    a, b = (end.start() for end in join(2))
    b.gate.clear()
    for clock in range(30):
        a.wire.send(1, Frame(PUSH, 0, clock), torch.full((MB // 4,), float(clock)), 0)
    closing = threading.Thread(target=a.wire.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()  # nothing is taken yet
    b.gate.set()
    closing.join(HANG)
    assert not closing.is_alive()
    b.wait(got=30)
    assert all(float(got.view(torch.float32)[-1]) == f.clock for _, f, got in b.got)
    a.wire.close()
    b.wire.close()
    assert not a.failures
    assert not b.failures


def test_a_rank_may_leave_while_others_go_on(join: Join) -> None:
    a, b, c = (end.start() for end in join(3))
    a.wire.close()
    with pytest.raises(
        RuntimeError, match="rank 1 cannot send the push of item 4 at clock 1 to ra"
    ):
        b.wire.send(0, Frame(PUSH, 4, 1), torch.ones(1), 0)
    with pytest.raises(
        RuntimeError, match=r"rank 0 cannot send .* it has itself closed the connection"
    ):
        a.wire.send(2, Frame(PUSH, 4, 1), torch.ones(1), 0)
    b.wire.send(2, Frame(PUSH, 4, 1), torch.ones(1), 0)
    c.wait(got=1)
    assert a.failures + b.failures + c.failures == []


def test_close_gives_up_and_says_on_whom(join: Join) -> None:
    a, b = (end.start() for end in join(2))
    for end in (a, b):  # only now: the ranks have met, and the rest takes no time
        end.wire._timeout = 0.5  # type: ignore[attr-defined]
    b.gate.clear()
    for clock in range(30):
        a.wire.send(1, Frame(PUSH, 0, clock), torch.ones(MB), 0)
    a.wire.close()
    assert len(a.failures) == 1
    assert a.failures[0].startswith("rank 0 has waited 0.5 s for rank 1 to take what is queued")


def test_what_arrive_raises_is_told_once_and_holds_up_nobody(join: Join) -> None:
    a, b = join(2)

    def arrive(source: int, frame: Frame, payload: Tensor) -> None:
        raise KeyError("no such thing")

    a.start()
    b.wire.start(arrive, b.fail)
    for clock in range(20):
        a.wire.send(1, Frame(PUSH, 3, clock), torch.ones(MB), 0)
    a.wire.close()
    assert b.failures == [
        "rank 1 could not take the push of item 3 at clock 0 from rank 0: KeyError('no such thing')"
    ]
    assert not a.failures


def test_an_end_may_be_closed_by_its_own_threads(join: Join) -> None:
    a, b = join(2)
    closed = threading.Event()

    def arrive(source: int, frame: Frame, payload: Tensor) -> None:
        b.wire.close()
        closed.set()

    a.start()
    b.wire.start(arrive, b.fail)
    a.wire.send(1, Frame(PUSH, 0, 1), torch.ones(1), 0)
    assert closed.wait(HANG)
    a.wire.close()
    assert not b.failures


def test_an_end_may_be_closed_where_it_hears_of_a_failure(opened: list[End]) -> None:
    a, b = (End(wire) for wire in socket_wires(2))
    opened.extend((a, b))
    closed = threading.Event()

    def fail(reason: str) -> None:
        b.fail(reason)
        b.wire.close()
        closed.set()

    a.start()
    b.wire.start(b.arrive, fail)
    connection(a, 1).sendall(b"nonsense")
    assert closed.wait(HANG)
    assert len(b.failures) == 1
    a.wait(failures=1)  # no goodbye, which would mean that all is well
    with pytest.raises(RuntimeError, match="rank 0 has lost rank 1: its process has ended"):
        a.wire.send(1, Frame(PUSH, 0, 1), torch.ones(1), 0)


def test_frames_that_nobody_expects_are_refused(join: Join) -> None:
    for frame, sentence in [
        (Frame(PUSH, 8, 1), "there is no item 8"),
        (Frame(PUSH, 7, 1), "item 7 has at most 4 bytes, not 40"),
        (Frame(9, 7, 1), "it is of kind 9"),
    ]:
        a, b = join(2)
        b.wire.expect({7: 4})
        a.start()
        b.start()
        a.wire.send(1, Frame(PUSH, 7, 1), torch.ones(1), 0)
        b.wait(got=1)
        a.wire.send(1, frame, torch.ones(10), 0)
        b.wait(failures=1)
        assert re.search(f"^rank 1 got .* from rank 0.*: {sentence}: see whether", b.failures[0])
        assert len(b.got) == 1


def test_one_rank_alone_needs_no_connection(join: Join) -> None:
    (end,) = join(1)
    end.start()
    assert end.wire.sent == {}
    assert end.wire.counters == Counters()


def test_an_end_that_was_never_started_says_goodbye(join: Join) -> None:
    a, b = join(2)
    a.start()
    b.wire.close()
    a.wire.close()
    assert not a.failures


# Sockets: strangers and nonsense


@pytest.mark.parametrize(
    ("garbage", "sentence"),
    [
        (
            b"GARBAGE",
            "rank 1 got 7 bytes from rank 0 that are no frame: they begin with b'GARBAGE'",
        ),
        (b"r", ""),  # so far so good
        (b"rx", "rank 1 got 2 bytes from rank 0 that are no frame"),
        (HEADER.pack(b"rdl0", PUSH, 7, 1, 0, 4), "they begin with b'rdl0"),
        (HEADER.pack(MAGIC, 77, 7, 1, 0, 4), "no frame: it is of kind 77"),
        (HEADER.pack(MAGIC, 0, 7, 1, 0, 0), "no frame: it is of kind 0"),  # not quite a goodbye
        (HEADER.pack(MAGIC, PULL, 8, 1, 0, 4), "no frame: there is no item 8"),
        (HEADER.pack(MAGIC, PULL, 7, 1, 0, 2**63), f"at most 4 bytes, not {2**63}"),
    ],
)
def test_nonsense_on_a_connection_names_the_rank(
    opened: list[End], garbage: bytes, sentence: str
) -> None:
    a, b = (End(wire) for wire in socket_wires(2))
    opened.extend((a, b))
    b.wire.expect({7: 4})
    a.start()
    b.start()
    a.wire.send(1, Frame(PUSH, 7, 1), torch.ones(1), 0)
    b.wait(got=1)
    connection(a, 1).sendall(garbage)
    if not sentence:
        time.sleep(0.1)
        assert not b.failures
        connection(a, 1).shutdown(socket.SHUT_RDWR)  # in the middle of a header
        sentence = "rank 1 has lost rank 0: its process has ended without a word"
    b.wait(failures=1)
    assert sentence in b.failures[0]
    a.wait(failures=1)  # its connection has been cut
    assert "rank 0 has lost rank 1" in a.failures[0]
    assert len(b.got) == len(b.failures) == len(a.failures) == 1


def stranger(port: int, says: bytes) -> socket.socket:
    caller = socket.create_connection(("127.0.0.1", port), HANG)
    caller.sendall(says)
    return caller


def test_strangers_stay_outside_and_ranks_get_in(
    opened: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that waited for silent or slow callers would need more time than it has."""
    monkeypatch.setattr(rendezvous, "HANDSHAKE_SECONDS", 2 * HANG)
    ranks = Ranks(3)
    callers: list[socket.socket] = []
    liars: list[socket.socket] = []
    ports: list[int] = []

    def share(rank: int) -> Callable[[Any], list[Any]]:
        def share(address: Any) -> list[Any]:
            port, token = address[1], bytes.fromhex(address[2])
            if rank == 2:  # nobody calls it
                assert (address[0], port) == ([], 0)
                return ranks.share(rank)(address)
            ports.append(port)
            for says in (b"", b"GET / HTTP/1.0\r\n\r\n", b"x" * 5000):
                callers.append(stranger(port, says))
            stranger(port, b"gone").close()
            for lie in (
                HELLO.pack(MAGIC, bytes(32), 2),
                HELLO.pack(MAGIC, token, 77),
                HELLO.pack(b"what", token, 2),
                HELLO.pack(MAGIC, token, 2) + b"!",  # does not wait for the answer
            ):
                liars.append(stranger(port, lie))
            return ranks.share(rank)(address)

        return share

    wires = together(3, lambda r: SocketWire(r, 3, share(r), timeout=HANG, host="127.0.0.1"))
    ends = [End(wire).start() for wire in wires]
    opened.extend(ends)
    for liar in liars:
        liar.settimeout(HANG)
        with contextlib.suppress(ConnectionError):
            assert liar.recv(100) == b""
    for port in ports:
        with pytest.raises(ConnectionError):  # the door is shut
            stranger(port, b"late").recv(1)
    for a in range(3):
        for b in {0, 1, 2} - {a}:
            ends[a].wire.send(b, Frame(PUSH, a, 1), torch.ones(10), 0)
    for end in ends:
        end.wait(got=2)
        assert not end.failures
    for caller in callers + liars:
        caller.close()


def test_a_crowd_of_silent_strangers_is_sent_away() -> None:
    ranks = Ranks(2)
    crowd: list[socket.socket] = []

    def share(address: Any) -> list[Any]:
        given = ranks.share(0)(address)

        def gather() -> None:  # while rank 0 waits for rank 1
            for _ in range(3 * rendezvous.MAX_UNIDENTIFIED):
                with contextlib.suppress(OSError):
                    crowd.append(stranger(address[1], b"ab"))
            come.set()

        threading.Thread(target=gather).start()
        return given

    come = threading.Event()

    def late(address: Any) -> list[Any]:
        given = ranks.share(1)(address)
        assert come.wait(HANG)
        assert crowd[0].recv(1) == b""  # sent away while rank 0 still waits
        return given

    wires = together(
        2, lambda r: SocketWire(r, 2, late if r else share, timeout=HANG, host="127.0.0.1")
    )
    for caller in crowd:
        caller.close()
    for wire in wires:
        assert isinstance(wire, SocketWire), wire
    together(2, lambda r: wires[r].close())
    assert len(crowd) > 2 * rendezvous.MAX_UNIDENTIFIED


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("listens", [True, False])
def test_a_rank_that_never_comes_is_named(missing: int, listens: bool) -> None:
    """The rank may have died after it gave its address, or its kernel may still accept connections."""
    ranks = Ranks(3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = (["127.0.0.1"], server.getsockname()[1], bytes(32).hex())
        if not listens:
            server.close()

        def rank(r: int) -> Any:
            if r == missing:
                return ranks.share(r)(address)
            return SocketWire(r, 3, ranks.share(r), timeout=2.0, host="127.0.0.1")

        ends = together(3, rank)
    for r in {0, 1, 2} - {missing}:
        assert isinstance(ends[r], TimeoutError)
        assert f"rank {r} has waited 2.0 s for rank {missing} to meet it" in str(ends[r])


def test_too_few_addresses() -> None:
    with pytest.raises(ValueError, match="rank 0 got 1 addresses for 2 ranks"):
        SocketWire(0, 2, lambda address: [address], timeout=1)


@pytest.mark.parametrize(
    ("master", "hosts"),
    [
        (None, ["127.0.0.1", socket.gethostname()]),
        ("127.0.0.1", ["127.0.0.1"]),
        ("no.such.host.invalid", ["127.0.0.1", socket.gethostname()]),
        (
            "127.0.0.9",
            ["127.0.0.1", "127.0.0.9"],
        ),  # a name for this machine may be another's as well
    ],
)
def test_where_others_reach_a_rank(
    monkeypatch: pytest.MonkeyPatch, master: str | None, hosts: list[str]
) -> None:
    if master is None:
        monkeypatch.delenv("MASTER_ADDR", raising=False)
    else:
        monkeypatch.setenv("MASTER_ADDR", master)
    assert reachable_hosts() == hosts


@pytest.mark.parametrize(
    ("master", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "::1"),
        ("a.name", None),
        (None, None),
    ],
)
def test_nobody_listens_to_the_network_where_all_ranks_are_on_one_machine(
    monkeypatch: pytest.MonkeyPatch, master: str | None, host: str | None
) -> None:
    if master is None:
        monkeypatch.delenv("MASTER_ADDR", raising=False)
    else:
        monkeypatch.setenv("MASTER_ADDR", master)
    if master == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    with open_server_socket(backlog=1) as door:
        everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        assert door.getsockname()[0] == (host or everywhere)
        socket.create_connection((host or "127.0.0.1", door.getsockname()[1]), HANG).close()


def test_a_host_that_leads_elsewhere_is_passed_over() -> None:
    """Rank 0 has two addresses: at the first, another process replies with the wrong token."""
    tokens = [bytes([rank]) * rendezvous.TOKEN_BYTES for rank in (1, 2)]
    received: list[bytes] = []

    def answer() -> None:
        caller = impostor.accept()[0]
        caller.recv(HELLO.size)
        caller.sendall(bytes(rendezvous.TOKEN_BYTES))
        received.append(caller.recv(1))
        caller.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)) as impostor:
            answering = threading.Thread(target=answer)
            answering.start()
            deadline = time.monotonic() + HANG
            address = (["127.0.0.2", "127.0.0.1"], port, tokens[0].hex())
            call = rendezvous._Connector(1, 0, address, tokens[1], deadline)
            accepted = rendezvous._accept_ranks(server, tokens[0], {1: tokens[1]}, deadline)
            call.join(HANG)
            answering.join(HANG)
    assert received == [b""]  # rank 1 has hung up on it
    assert call.connection is not None
    assert call.connection.getsockname() == accepted[1].getpeername()
    call.connection.close()
    accepted[1].close()


def test_the_kernel_is_given_little_room(socket_ends: Join) -> None:
    a, b = socket_ends(2)
    for end, peer in ((a, 1), (b, 0)):
        room = connection(end, peer).getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert SMALLEST <= room <= 2 * SMALLEST  # Linux gives twice what is asked
        assert connection(end, peer).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_goodbye_is_answered_and_then_the_connection_is_silent(socket_ends: Join) -> None:
    a, b = socket_ends(2)
    connection(a, 1).sendall(BYE)
    with contextlib.suppress(OSError):  # both ends may have said goodbye by now
        connection(a, 1).shutdown(socket.SHUT_WR)
    for thread in threading.enumerate():
        if thread.name.endswith("from 1"):
            thread.join(HANG)  # it has got the reply
            assert not thread.is_alive()
    assert a.failures + b.failures == []


def test_only_the_first_failure_is_told(socket_ends: Join) -> None:
    a, b, c = socket_ends(3)
    for end in (b, c):
        connection(end, 0).shutdown(socket.SHUT_RDWR)
        a.wait(failures=1)
    assert isinstance(a.wire, SocketWire)
    for thread in a.wire._threads:
        thread.join(HANG)
        assert not thread.is_alive()
    assert len(a.failures) == 1
    assert a.failures[0].startswith("rank 0 has lost rank 1: ")


def test_names_of_ranks() -> None:
    assert [name_ranks({3}), name_ranks([3, 1])] == ["rank 3", "ranks 1, 3"]


# Processes


SIZE = 4


def in_process(rank: int, pipe: Connection, scene: str) -> None:
    def share(address: Any) -> list[Any]:
        pipe.send(address)
        given: list[Any] = pipe.recv()
        return given

    end = End(SocketWire(rank, SIZE, share, timeout=HANG)).start()
    if scene == "all to all":
        for peer in end.wire.sent:
            for clock in range(5):
                payload = torch.full((MB // 4,), float(10 * rank + clock))
                end.wire.send(peer, Frame(PUSH, rank, clock), payload, -clock)
        end.wait(got=5 * (SIZE - 1))
        end.wire.close()
        messages = [(s, f.clock, float(p.view(torch.float32).mean())) for s, f, p in end.got]
        pipe.send((messages, end.failures, end.wire.sent))
    elif rank == 2:  # half a message to everybody, and then no more
        for peer in end.wire.sent:
            connection(end, peer).sendall(
                HEADER.pack(MAGIC, PUSH, 0, 1, 0, 8 * MB) + bytes(100_000)
            )
        pipe.send("ready")
        time.sleep(2 * HANG)  # until it is killed
    else:
        pipe.send("ready")
        end.wait(failures=1)
        pipe.send(end.failures)
        end.wire.close()
        pipe.send(end.failures)


@pytest.fixture
def processes() -> Iterator[Callable[[str], list[tuple[Any, Connection]]]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # imports it once
    started: list[tuple[Any, Connection]] = []

    def start(scene: str) -> list[tuple[Any, Connection]]:
        for rank in range(SIZE):
            here, there = context.Pipe()
            process = context.Process(target=in_process, args=(rank, there, scene), daemon=True)
            process.start()
            there.close()
            started.append((process, here))
        addresses = [receive(here) for _, here in started]
        for _, here in started:
            here.send(addresses)
        return started

    yield start
    for process, here in started:
        process.join(0.5)
        if process.is_alive():
            process.kill()
            process.join(HANG)
        here.close()


def receive(pipe: Connection) -> Any:
    assert pipe.poll(HANG), "no answer"
    return pipe.recv()


def test_four_processes(processes: Callable[[str], list[tuple[Any, Connection]]]) -> None:
    for rank, (process, pipe) in enumerate(processes("all to all")):
        messages, failures, sent = receive(pipe)
        others = [r for r in range(SIZE) if r != rank]
        assert sorted(messages) == [(r, c, 10.0 * r + c) for r in others for c in range(5)]
        assert failures == []
        assert sent == dict.fromkeys(others, 5 * MB)
        process.join(HANG)
        assert process.exitcode == 0


def test_a_process_that_is_killed_is_missed_by_all(
    processes: Callable[[str], list[tuple[Any, Connection]]],
) -> None:
    ranks = processes("death")
    for _, pipe in ranks:
        assert receive(pipe) == "ready"
    os.kill(ranks[2][0].pid, signal.SIGKILL)
    for rank in (0, 1, 3):
        failures = receive(ranks[rank][1])
        assert failures == [
            f"rank {rank} has lost rank 2: its process has ended without a word: "
            "killed, or out of memory?"
        ]
        assert receive(ranks[rank][1]) == failures  # the goodbyes of others are no deaths
        ranks[rank][0].join(HANG)
        assert ranks[rank][0].exitcode == 0
