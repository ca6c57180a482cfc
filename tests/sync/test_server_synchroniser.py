"""ServerSynchroniser with threads as ranks: sums, staleness, order, failures; against replays."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timeouts import HANG, wait_until
from torch import Tensor

from raddle.sync.item import Item, UpdateEvent
from raddle.sync.server_synchroniser import ServerSynchroniser
from raddle.transport.memory_wire import memory_wires
from raddle.transport.wire import PULL, PUSH, Counters, Frame, OnFailure, OnMessage

# w: worker, c: clock, v: version, s: staleness


def item(
    number: int, workers: tuple[int, ...], server: int, elements: int = 5, **more: Any
) -> Item:
    fields = {"dtype": torch.float32, "priority": number, **more}
    return Item(number, f"w{number}[0:{elements}]", workers, server, elements, **fields)


def initial(i: Item) -> Tensor:
    return torch.arange(i.elements).add(i.number).to(i.dtype) / 7


def gradient(i: Item, worker: int, clock: int) -> Tensor:
    """Returns values of very different sizes, so that a sum in another order has other bits."""
    generator = torch.Generator().manual_seed(i.number * 10_007 + worker * 101 + clock)
    values = torch.randn(i.elements, generator=generator)
    return (values * 10.0 ** torch.randint(-3, 4, (i.elements,), generator=generator)).to(i.dtype)


def update(rows: Tensor, g: Tensor) -> Tensor:
    """Updates in place. It is not commutative: another order of updates has other bits."""
    return rows.mul_(0.9).sub_(g * 0.1)


class Job:
    """The synchronisers of all ranks; a failure on one rank stops all others."""

    def __init__(self, items: list[Item], size: int, **options: Any) -> None:
        self.items, self.size = items, size
        self.reasons: list[str] = []
        self.rows: list[dict[int, Tensor]] = [{} for _ in range(size)]
        self.syncs: list[ServerSynchroniser] = []
        apply = options.pop("apply", None)
        for rank, wire in enumerate(memory_wires(size, timeout=HANG)):
            self.syncs.append(
                ServerSynchroniser(
                    items, wire, apply or self.update(rank),
                    **{"timeout": HANG, "fail": self.stop_others(rank), **options},
                )
            )  # fmt: skip
            for i in items:
                if rank == i.server or rank in i.workers:
                    self.rows[rank][i.number] = initial(i)
                    self.syncs[rank].bind(i.number, self.rows[rank][i.number])
        for sync in self.syncs:
            sync.start()

    def update(self, rank: int) -> Callable[[int, int, Tensor], None]:
        def apply(number: int, clock: int, g: Tensor) -> None:
            update(self.syncs[rank].rows_at_server(number)[0], g)

        return apply

    def stop_others(self, rank: int) -> Callable[[str], None]:
        def fail(reason: str) -> None:
            self.reasons.append(reason)
            for other in self.syncs:
                if other.rank != rank:
                    other.stop(f"rank {other.rank} stops: {reason}")

        return fail

    def mine(self, rank: int) -> list[Item]:
        return [i for i in self.items if rank in i.workers]

    def run(self, body: Callable[[int], None]) -> list[Exception | None]:
        """Runs each rank on a thread; returns what it raised."""
        raised: list[Exception | None] = [None] * self.size

        def target(rank: int) -> None:
            try:
                body(rank)
            except Exception as error:
                raised[rank] = error

        threads = [
            threading.Thread(target=target, args=(r,), daemon=True) for r in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG)
            assert not thread.is_alive()
        return raised

    def succeed(self, body: Callable[[int], None]) -> None:
        for error in self.run(body):
            if error is not None:
                raise error

    def close(self) -> None:
        for sync in self.syncs:
            sync.close()

    def missing(self, server: int) -> list[tuple[int, ...]]:
        """Returns, for each item that waits at a server, the ranks that are missing."""
        return [waiting.missing for waiting in self.syncs[server]._server.stalled_items()]

    def wait_for_failure(self, rank: int) -> None:
        wait_until(lambda: self.syncs[rank]._failure.reason)


class Clock:
    """A fake `time` module for the servers; only a test moves it on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in ("synchronous_server", "stale_server"):
            monkeypatch.setattr(f"raddle.sync.{module}.time", self)

    def perf_counter(self) -> float:
        return self.now


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, list[Item]]:
    """Draws a number of ranks, and items whose server may be a worker or not."""
    size = draw(st.integers(1, 4))
    ranks = st.integers(0, size - 1)
    items = [
        item(
            number,
            tuple(draw(st.lists(ranks, min_size=1, unique=True))),
            draw(ranks),
            draw(st.integers(1, 40)),
            dtype=draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
            priority=draw(st.integers(0, 3)),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    return size, items


def summed(items: list[Item], steps: int) -> dict[tuple[int, int], Tensor]:
    """The serial oracle: returns the rows by item and clock."""
    rows_at = {}
    for i in items:
        rows = initial(i)
        for clock in range(1, steps + 1):
            first, *others = sorted(i.workers)
            total = gradient(i, first, clock)
            for worker in others:
                total = total + gradient(i, worker, clock)
            rows_at[i.number, clock] = update(rows, total).clone()
    return rows_at


def delay(dice: random.Random) -> None:
    if dice.random() < 0.3:
        time.sleep(dice.random() * 0.003)


@settings(max_examples=40)
@given(jobs(), st.integers(0, 999))
def test_sums_are_those_of_a_serial_oracle(job: tuple[int, list[Item]], seed: int) -> None:
    size, items = job
    steps = 4
    expected = summed(items, steps)
    ranks = Job(items, size)

    def body(rank: int) -> None:
        dice = random.Random(seed + rank)
        mine = ranks.mine(rank)
        for clock in range(1, steps + 1):
            for i in dice.sample(mine, len(mine)):
                delay(dice)
                ranks.syncs[rank].submit(i.number, gradient(i, rank, clock))
            for i in dice.sample(mine, len(mine)):
                ranks.syncs[rank].wait(i.number)
                assert torch.equal(ranks.rows[rank][i.number], expected[i.number, clock])
                delay(dice)
        ranks.syncs[rank].synchronize()

    ranks.succeed(body)
    ranks.close()
    for i in items:  # a server that is not a worker has them too
        assert torch.equal(ranks.rows[i.server][i.number], expected[i.number, steps])
        log = [e for e in ranks.syncs[i.server].log if e.item == i.number]
        assert log == [UpdateEvent(i.number, -1, c, c) for c in range(1, steps + 1)]


def test_what_is_handed_in_is_only_read() -> None:
    ranks = Job([item(0, (0, 1), 0), item(1, (0, 1), 1), item(2, (0,), 0)], 2)

    def body(rank: int) -> None:
        given = {i: gradient(i, rank, 1) for i in ranks.mine(rank)}
        for i, g in given.items():
            ranks.syncs[rank].submit(i.number, g)
        ranks.syncs[rank].synchronize()
        for i, g in given.items():
            assert torch.equal(g, gradient(i, rank, 1))

    ranks.succeed(body)
    ranks.close()


class Stale:
    """A run with staleness, and the data to replay it."""

    def __init__(
        self, items: list[Item], size: int, s: int | None, steps: int, seed: int, slow: bool = False
    ) -> None:
        self.items, self.s = items, s
        self.given: dict[tuple[int, int, int], Tensor] = {}  # item, w, c
        self.seen: dict[tuple[int, int, int], Tensor] = {}
        self.lead: dict[int, int] = defaultdict(int)  # by worker, how far it was ahead
        self.handed = {(i.number, w): 0 for i in items for w in i.workers}
        self.job = Job(items, size, staleness=s)
        self.steps, self.seed, self.slow = steps, seed, slow
        self.job.succeed(self.body)

    def body(self, rank: int) -> None:
        dice, sync, rows = (
            random.Random(self.seed + rank),
            self.job.syncs[rank],
            self.job.rows[rank],
        )
        mine = self.job.mine(rank)
        before = {i.number: initial(i) for i in mine}
        farthest = [self.steps if self.s is None else self.s] * 2
        for c in range(1, self.steps + 1):
            if rank == 0 and c == 1 and self.slow:  # until all others are as far as they may be
                wait_until(lambda: [*self.lead.values()] == farthest)
            for i in mine:
                delay(dice)
                # Nobody else's update gets into rows that this worker computes with.
                assert torch.equal(rows[i.number], before[i.number])
                g = gradient(i, rank, c) + rows[i.number]
                self.given[i.number, rank, c] = g
                self.handed[i.number, rank] = c
                sync.submit(i.number, g)
            for i in mine:
                sync.wait(i.number)
                # Read after the wait: others may have gone on since, never back.
                ahead = c - min(self.handed[i.number, w] for w in i.workers)
                assert self.s is None or ahead <= self.s
                self.lead[rank] = max(self.lead[rank], ahead)
                before[i.number] = rows[i.number].clone()
                self.seen[i.number, rank, c] = before[i.number]
        sync.synchronize()

    def check_replay(self) -> None:
        """Replays the log: the server has the same rows; each worker saw a recent enough version."""
        for i in self.items:
            log = [e for e in self.job.syncs[i.server].log if e.item == i.number]
            each = [(w, c) for w in i.workers for c in range(1, self.steps + 1)]
            assert sorted((e.worker, e.clock) for e in log) == sorted(each)
            assert [e.version for e in log] == list(range(1, len(log) + 1))
            rows = initial(i)
            versions = [rows.clone()]
            for e in log:
                versions.append(update(rows, self.given[i.number, e.worker, e.clock]).clone())
            assert torch.equal(self.job.syncs[i.server].rows_at_server(i.number)[0], rows)
            at = {(e.worker, e.clock): e.version for e in log}
            for w, c in each:
                oldest = at[w, c]
                if self.s is not None and c > self.s:
                    oldest = max(oldest, *(at[x, c - self.s] for x in i.workers))
                seen = self.seen[i.number, w, c]
                assert any(torch.equal(seen, v) for v in versions[oldest:])


@settings(max_examples=25)
@given(jobs(), st.sampled_from([1, 2, 3, None]), st.integers(0, 999))
def test_stale_updates_replay(job: tuple[int, list[Item]], s: int | None, seed: int) -> None:
    size, items = job
    run = Stale(items, size, s, steps=5, seed=seed)
    run.check_replay()
    run.job.close()


@pytest.mark.parametrize("server", [0, 1, 3])  # the slow worker, a fast one, none
@pytest.mark.parametrize("s", [1, 3, None])
def test_a_slow_worker_holds_others_back_by_the_bound(s: int | None, server: int) -> None:
    run = Stale([item(0, (0, 1, 2), server)], 4, s, steps=8, seed=1, slow=True)
    run.check_replay()
    run.job.close()
    assert max(run.lead.values()) == (8 if s is None else s)


@pytest.mark.parametrize("server", [0, 1, 3])
def test_without_staleness_nobody_is_ahead(server: int) -> None:
    i = item(0, (0, 1, 2), server)
    ranks = Job([i], 4, staleness=0)
    handed = dict.fromkeys(i.workers, 0)

    def body(rank: int) -> None:
        for c in range(1, 6) if rank in i.workers else ():
            if rank == 0:
                time.sleep(0.01)
            handed[rank] = c
            ranks.syncs[rank].submit(0, gradient(i, rank, c))
            ranks.syncs[rank].wait(0)
            assert min(handed.values()) >= c

    ranks.succeed(body)
    ranks.close()


def test_submit_waits_for_what_is_under_way() -> None:
    i = item(0, (0, 1), 0)
    ranks = Job([i], 2)
    order: list[str] = []

    def body(rank: int) -> None:
        if rank == 1:
            time.sleep(0.05)
            order.append("rank 1 submits")
        ranks.syncs[rank].submit(0, gradient(i, rank, 1))
        ranks.syncs[rank].submit(0, gradient(i, rank, 2))
        order.append("second")
        ranks.syncs[rank].wait(0)

    ranks.succeed(body)
    ranks.close()
    assert order[0] == "rank 1 submits"
    assert torch.equal(ranks.rows[1][0], summed([i], 2)[0, 2])


def test_a_single_rank() -> None:
    items = [item(0, (0,), 0), item(1, (0,), 0)]
    for s in (0, 2, None):
        ranks = Job(items, 1, staleness=s)
        for c in (1, 2, 3):
            for i in items:
                ranks.syncs[0].submit(i.number, gradient(i, 0, c))
            ranks.syncs[0].synchronize()
        for i in items:
            assert torch.equal(ranks.rows[0][i.number], summed(items, 3)[i.number, 3])
        ranks.close()


def test_autograd_notices_rows_that_come_back_while_in_use() -> None:
    p = torch.ones(5, requires_grad=True)
    wire = Stub(1, 2)
    sync = ServerSynchroniser([item(0, (0, 1), 0)], wire, nothing)
    sync.bind(0, p.detach())
    sync.submit(0, torch.ones(5))
    loss = (p * p).sum()
    wire.arrive(0, Frame(PULL, 0, 1, 1), payload(torch.zeros(5)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# A barrier


@settings(max_examples=20)
@given(jobs())
def test_a_barrier_gives_all_sums_before_anything_is_updated(job: tuple[int, list[Item]]) -> None:
    size, items = job
    ranks = Job(items, size, barrier=True)
    seen: list[tuple[int, int, Tensor, Tensor]] = []

    def body(rank: int) -> None:
        sync = ranks.syncs[rank]
        for c in (1, 2, 3):
            given = {i.number: gradient(i, rank, c) for i in ranks.mine(rank)}
            for number, g in given.items():
                sync.submit(number, g)
            sums = sync.sums()
            assert sorted(sums) == [i.number for i in items if i.server == rank]
            for number, total in sums.items():
                seen.append((number, c, total.clone(), ranks.rows[rank][number].clone()))
                total.mul_(0.5)  # a caller clips in place
                ranks.rows[rank][number].sub_(total)
            sync.publish()
            sync.synchronize()
            for number, g in given.items():
                assert torch.equal(g, gradient(items[number], rank, c))

    ranks.succeed(body)
    ranks.close()
    for i in items:
        rows = initial(i)
        for c, total, before in sorted(
            ((c, t, b) for n, c, t, b in seen if n == i.number), key=lambda x: x[0]
        ):
            first, *others = sorted(i.workers)
            expected = gradient(i, first, c)
            for w in others:
                expected = expected + gradient(i, w, c)
            assert torch.equal(total, expected)
            assert torch.equal(before, rows)
            rows.sub_(expected * 0.5)
        for rank in (*i.workers, i.server):
            assert torch.equal(ranks.rows[rank][i.number], rows)


def test_a_barrier_that_misses_a_rank_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ranks = Job([item(0, (1, 2), 0), item(1, (1,), 0)], 3, barrier=True, stall=0.2)

    def body(rank: int) -> None:
        if rank == 0:
            wait_until(
                lambda: ranks.missing(0) == [(2,)] and 1 in ranks.syncs[0]._server.step_sums.sums()
            )
            clock.now = 2 * HANG
            ranks.syncs[0].sums()
        elif rank == 1:
            ranks.syncs[1].submit(0, torch.ones(5))
            ranks.syncs[1].submit(1, torch.ones(5))
            ranks.syncs[1].synchronize()

    raised = ranks.run(body)
    ranks.close()
    assert isinstance(raised[0], TimeoutError)
    assert re.match(
        r"rank 0 has waited \d+\.\d s for rank 2 to submit 'w0\[0:5\]': see what", str(raised[0])
    )
    assert str(raised[1]) == f"rank 1 stops: {raised[0]}"


def test_barriers_and_their_methods_go_together() -> None:
    with pytest.raises(ValueError, match="staleness is 2, and a barrier"):
        ServerSynchroniser([item(0, (0,), 0)], Stub(0, 1), nothing, staleness=2, barrier=True)
    sync = bound(Stub(0, 1), [item(0, (0,), 0)])
    with pytest.raises(RuntimeError, match=r"sums\(\) is for barrier=True"):
        sync.sums()
    sync = bound(Stub(0, 1), [item(0, (0,), 0)], barrier=True)
    with pytest.raises(RuntimeError, match=r"call sums\(\) first"):
        sync.publish()


# A wire by hand: exact order, and what a peer could get wrong


class Stub:
    """A fake wire: records what is sent; the test decides what arrives and when a message has left."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent: dict[int, int] = {}
        self.counters = Counters()
        self.letters: list[tuple[int, Frame, Tensor, int]] = []
        self.leaves = True
        self.limits: Mapping[int, int] = {}
        self.closed = 0

    def expect(self, limits: Mapping[int, int]) -> None:
        self.limits = limits

    def start(self, arrive: OnMessage, fail: OnFailure) -> None:
        self.arrive, self.fail = arrive, fail

    def send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        self.letters.append((target, frame, payload, priority))
        self.counters.messages += self.leaves

    def close(self) -> None:
        self.closed += 1


def nothing(number: int, clock: int, g: Tensor) -> None:
    """Updates nothing."""


def payload(values: Tensor) -> Tensor:
    return values.view(torch.uint8).clone()


def bound(
    wire: Stub, items: list[Item], apply: Any = nothing, **options: Any
) -> ServerSynchroniser:
    sync = ServerSynchroniser(items, wire, apply, **options)
    for i in items:
        if wire.rank == i.server or wire.rank in i.workers:
            sync.bind(i.number, initial(i))
    sync.start()
    return sync


def test_frames_priorities_and_limits() -> None:
    wire = Stub(1, 3)
    items = [item(0, (1, 2), 0, priority=7), item(1, (0, 1), 1, priority=3), item(2, (0, 2), 0)]
    sync = bound(wire, items)
    assert wire.limits == {0: 20, 1: 20}
    sync.submit(0, torch.ones(5))
    wire.arrive(0, Frame(PUSH, 1, 1), payload(torch.ones(5)))
    sync.submit(1, torch.ones(5))
    sync.wait(1)
    assert [(t, f, p) for t, f, _, p in wire.letters] == [
        (0, Frame(PUSH, 0, 1), 7),
        (0, Frame(PULL, 1, 1, 1), 3),
    ]


def test_synchronous_rows_leave_without_a_copy_and_stale_ones_with_one() -> None:
    for s, same in ((0, True), (1, False), (None, False)):
        wire = Stub(0, 2)
        sync = bound(wire, [item(0, (1,), 0)], staleness=s)
        wire.arrive(1, Frame(PUSH, 0, 1), payload(torch.ones(5)))
        rows = wire.letters[0][2]
        assert (rows.data_ptr() == sync.rows_at_server(0)[0].data_ptr()) is same


def test_synchronize_waits_until_rows_have_left() -> None:
    wire = Stub(0, 2)
    wire.leaves = False
    sync = bound(wire, [item(0, (0, 1), 0)])
    sync.submit(0, torch.ones(5))
    wire.arrive(1, Frame(PUSH, 0, 1), payload(torch.ones(5)))
    sync.wait(0)  # the own rows are there
    thread = threading.Thread(target=sync.synchronize, daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    wire.counters.messages += 1
    thread.join(HANG)
    assert not thread.is_alive()


WRONG = [
    (1, Frame(PUSH, 0, 3), 20, r"rank 0 got 'w0\[0:5\]' with clock 3 from rank 1, whose last had clock 0"),
    (1, Frame(PUSH, 0, 1), 12, r"rank 0 got 12 bytes of 'w0\[0:5\]' from rank 1 and 20 are needed"),
    (2, Frame(PUSH, 0, 1), 20, r"rank 0 got a gradient of 'w0\[0:5\]' from rank 2: its workers are"),
    (1, Frame(PULL, 0, 1), 20, r"rank 0 got rows of 'w0\[0:5\]' from rank 1"),
    (1, Frame(PUSH, 1, 1), 20, r"rank 0 got a gradient of 'w1\[0:5\]' from rank 1: .* its server is 1"),
    (1, Frame(PULL, 1, 1), 20, r"rank 0 got back 'w1\[0:5\]' with clock 1 and has submitted clock 0"),
]  # fmt: skip


@pytest.mark.parametrize("s", [0, 1, None])
@pytest.mark.parametrize(("source", "frame", "nbytes", "words"), WRONG)
def test_what_does_not_fit_stops_the_rank(
    source: int, frame: Frame, nbytes: int, words: str, s: int | None
) -> None:
    reasons: list[str] = []
    wire = Stub(0, 3)
    items = [item(0, (0, 1), 0), item(1, (0, 1), 1)]
    sync = bound(wire, items, staleness=s, fail=reasons.append)
    before = sync.rows_at_server(0)[0].clone()
    wire.arrive(source, frame, torch.zeros(nbytes, dtype=torch.uint8))
    for act in (lambda: sync.wait(0), sync.synchronize, lambda: sync.submit(0, torch.ones(5))):
        with pytest.raises(ValueError, match=words):
            act()
    assert len(reasons) == 1
    assert re.match(words, reasons[0])
    assert not wire.letters
    assert torch.equal(sync.rows_at_server(0)[0], before)


def test_a_gradient_twice_or_too_early_makes_no_wrong_sum() -> None:
    for clock, words in (
        (1, "with clock 1 from rank 1, whose last had clock 1"),
        (2, "before that of clock 1"),
    ):
        wire = Stub(0, 2)
        sync = bound(wire, [item(0, (0, 1), 0)])
        wire.arrive(1, Frame(PUSH, 0, 1), payload(torch.ones(5)))
        wire.arrive(1, Frame(PUSH, 0, clock), payload(torch.ones(5)))
        with pytest.raises(ValueError, match=words):
            sync.submit(0, torch.ones(5))
        assert not sync.log


def test_a_pull_of_another_clock_leaves_the_rows_alone() -> None:
    wire = Stub(1, 2)
    rows = torch.ones(5)
    sync = ServerSynchroniser([item(0, (0, 1), 0)], wire, nothing)
    sync.bind(0, rows)
    sync.submit(0, torch.ones(5))
    wire.arrive(0, Frame(PULL, 0, 2, 2), payload(torch.zeros(5)))
    with pytest.raises(
        ValueError, match=r"rank 1 got back 'w0\[0:5\]' with clock 2 and has submitted clock 1"
    ):
        sync.wait(0)
    assert rows.tolist() == [1] * 5


def test_refuses_what_is_not_an_items_rows() -> None:
    wire = Stub(0, 2)
    sync = ServerSynchroniser([item(0, (0,), 0), item(1, (1,), 1)], wire, nothing)
    for rows, words in (
        (torch.ones(4), "4 elements of torch.float32"),
        (torch.ones(5, dtype=torch.float64), "5 elements of torch.float64"),
        (torch.ones(10)[::2], r"strides \(2,\)"),
        (torch.ones(5, requires_grad=True), r"take them from p\.detach\(\)"),
    ):
        with pytest.raises(ValueError, match=words):
            sync.bind(0, rows)
    with pytest.raises(ValueError, match=r"rank 0 starts without rows of 'w0\[0:5\]'"):
        sync.start()
    with pytest.raises(ValueError, match=r"rank 0 binds 'w1\[0:5\]', whose workers are \(1,\)"):
        sync.bind(1, torch.ones(5))
    sync.bind(0, torch.ones(5))
    with pytest.raises(ValueError, match="again"):
        sync.bind(0, torch.ones(5))
    with pytest.raises(ValueError, match=r"a gradient of .* with 4 elements"):
        sync.submit(0, torch.ones(4))
    with pytest.raises(ValueError, match=r"submits 'w1\[0:5\]'"):
        sync.submit(1, torch.ones(5))


def test_refuses_lists_that_make_no_sense() -> None:
    for items, words in (
        ([item(1, (0,), 0)], "has number 1 at place 0"),
        ([item(0, (), 0)], r"workers \(\)"),
        ([item(0, (0, 0), 0)], r"workers \(0, 0\)"),
        ([item(0, (0,), 2)], "names rank 2 and there are 2 ranks"),
    ):
        with pytest.raises(ValueError, match=words):
            ServerSynchroniser(items, Stub(0, 2), nothing)


def test_updates_wait_until_their_clock_is_admitted() -> None:
    at: list[tuple[int, int]] = []
    wire = Stub(0, 2)
    items = [item(0, (1,), 0, priority=1), item(1, (1,), 0, priority=0)]
    sync = bound(wire, items, lambda n, c, g: at.append((n, c)), admitted=0)
    for number in (0, 1):
        wire.arrive(1, Frame(PUSH, number, 1), payload(torch.ones(5)))
    assert not at
    sync.admit(1)
    assert at == [(1, 1), (0, 1)]  # the most urgent first
    wire.arrive(1, Frame(PUSH, 0, 2), payload(torch.ones(5)))
    assert len(at) == 2
    sync.admit(3)
    wire.arrive(1, Frame(PUSH, 0, 3), payload(torch.ones(5)))
    assert at[2:] == [(0, 2), (0, 3)]


def test_what_happens_is_recorded() -> None:
    seen: list[tuple[int, str]] = []
    times: list[float] = []
    i = item(0, (0, 1), 0)

    def record(number: int, what: str, start: float, end: float) -> None:
        seen.append((number, what))
        times.append(end - start)

    ranks = Job([i], 2, record=record)

    def body(rank: int) -> None:
        time.sleep(0.02 * (1 - rank))
        ranks.syncs[rank].submit(0, gradient(i, rank, 1))
        ranks.syncs[rank].wait(0)

    ranks.succeed(body)
    ranks.close()
    assert sorted(seen) == [(0, what) for what in ("pull", "push", "sum", "update", "wait")]
    assert min(times) >= 0


# Failures


def all_raise(raised: list[Exception | None], words: str) -> None:
    for error in raised:
        assert error is not None
        assert re.search(words, str(error)), error


@pytest.mark.parametrize("s", [0, 1, None])
@pytest.mark.parametrize("server", [0, 1, 2])
def test_an_exception_in_apply_reaches_all(server: int, s: int | None) -> None:
    def apply(number: int, clock: int, g: Tensor) -> None:
        if clock == 2:
            raise ArithmeticError("overflow")

    ranks = Job([item(0, (0, 1, 2), server), item(1, (0, 1, 2), 0)], 3, apply=apply, staleness=s)

    def body(rank: int) -> None:
        for _ in range(3):
            ranks.syncs[rank].submit(0, torch.ones(5))
            ranks.syncs[rank].wait(0)
        ranks.wait_for_failure(rank)
        ranks.syncs[rank].synchronize()

    raised = ranks.run(body)
    ranks.close()
    all_raise(
        raised,
        rf"rank {server} could not update 'w0\[0:5\]' at clock 2: ArithmeticError\('overflow'\)",
    )
    assert len(ranks.reasons) == 1
    assert isinstance(raised[server], RuntimeError)
    assert isinstance(raised[server].__cause__, Exception)


def test_a_dead_wire_reaches_all_who_wait() -> None:
    i = item(0, (0, 1), 0)
    reasons: list[str] = []
    wire = Stub(1, 2)
    sync = bound(wire, [i], fail=reasons.append, timeout=HANG)
    sync.submit(0, torch.ones(5))
    reason = "rank 1 has lost rank 0: its process has ended without a word"
    threading.Timer(0.05, wire.fail, (reason,)).start()
    with pytest.raises(RuntimeError, match=reason):  # and not that its time is up
        sync.wait(0)
    with pytest.raises(RuntimeError, match=reason):
        sync.synchronize()
    assert reasons == [reason]
    sync.stop("something later")
    with pytest.raises(RuntimeError, match=reason):  # the first counts
        sync.wait(0)


def test_a_stall_is_told_once_by_the_server_and_by_each_worker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, said = Clock(monkeypatch), list[str]()
    ranks = Job([item(n, (0, 1, 2), 0) for n in range(3)], 3, stall=0.2)

    def stall() -> None:
        wait_until(lambda: ranks.missing(0) == [(2,)] * 3)
        clock.now = 5.0
        wait_until(lambda: len(caplog.records) >= 2)
        time.sleep(0.5)  # in which nothing is said again
        said.extend(sorted(r.getMessage() for r in caplog.records if r.name == "raddle.sync"))

    def body(rank: int) -> None:
        for c in (1, 2):
            if rank == 2 and c == 1:
                stall()
            for i in ranks.items:
                ranks.syncs[rank].submit(i.number, gradient(i, rank, c))
            ranks.syncs[rank].synchronize()

    with caplog.at_level(logging.WARNING, "raddle.sync"):
        ranks.succeed(body)
    ranks.close()
    assert len(said) == 2
    assert re.fullmatch(
        r"rank 0 has waited \d\.\d s for rank 2 to submit 'w\d\[0:5\]' \(and 2 more\): see what it does\.",
        said[0],
    )
    assert re.fullmatch(
        r"rank 1 has waited \d\.\d s for rank 0 to send back 'w0\[0:5\]': see what it does\.",
        said[1],
    )


def test_a_stall_with_staleness_names_the_slowest(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, said = Clock(monkeypatch), list[str]()
    ranks = Job([item(0, (0, 1, 2), 0)], 3, staleness=1, stall=0.2)
    warned = threading.Event()

    def stall() -> None:
        wait_until(lambda: ranks.missing(0) == [(1, 2)])
        clock.now = 5.0
        wait_until(lambda: caplog.records)
        time.sleep(0.5)  # in which nothing is said again
        said.extend(r.getMessage() for r in caplog.records if r.getMessage()[:6] == "rank 0")
        warned.set()

    def body(rank: int) -> None:
        for c in (1, 2, 3):
            if rank == 1 and c == 2:
                stall()
            if rank == 2 and c == 2:
                assert warned.wait(HANG)
            ranks.syncs[rank].submit(0, gradient(ranks.items[0], rank, c))
            ranks.syncs[rank].synchronize()

    with caplog.at_level(logging.WARNING, "raddle.sync"):
        ranks.succeed(body)
    ranks.close()
    assert len(said) == 1
    assert re.search(r"for ranks 1, 2 to submit 'w0\[0:5\]': see what they do\.", said[0])


@pytest.mark.parametrize("server", [0, 1, 2, 3])  # 2 is the missing one, 3 is not a worker
@pytest.mark.parametrize("s", [0, 1])
def test_a_rank_that_never_comes_ends_in_a_time_out_everywhere(
    server: int, s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    ranks = Job([item(0, (0, 1, 2), server)], 4, stall=0.2, staleness=s)

    def body(rank: int) -> None:
        for c in range(1, 4) if rank < 2 else ():
            ranks.syncs[rank].submit(0, gradient(ranks.items[0], rank, c))
            ranks.syncs[rank].wait(0)
        if rank == 3:
            wait_until(lambda: ranks.missing(server) == [(2,)])
            clock.now = 2 * HANG
        ranks.wait_for_failure(rank)
        ranks.syncs[rank].synchronize()

    raised = ranks.run(body)
    ranks.close()
    all_raise(
        raised,
        rf"rank {server} has waited \d+\.\d s for rank 2 to submit 'w0\[0:5\]': see what it does\.",
    )
    assert isinstance(raised[server], TimeoutError)
    assert len(ranks.reasons) == 1


def test_a_server_that_does_not_answer_ends_in_a_time_out() -> None:
    reasons: list[str] = []
    sync = bound(Stub(1, 2), [item(0, (1,), 0)], timeout=0.2, fail=reasons.append)
    sync.submit(0, torch.ones(5))
    with pytest.raises(
        TimeoutError, match=r"rank 1 has waited \d\.\d s for rank 0 to send back 'w0\[0:5\]'"
    ):
        sync.wait(0)
    assert len(reasons) == 1


# The end


def test_close_is_idempotent_and_wakes_who_waits() -> None:
    wire = Stub(1, 2)
    sync = bound(wire, [item(0, (0, 1), 0)])
    sync.submit(0, torch.ones(5))
    threading.Timer(0.05, sync.close).start()
    with pytest.raises(
        RuntimeError, match=r"rank 1 was closed before rank 0 had sent back 'w0\[0:5\]'"
    ):
        sync.wait(0)
    sync.close()
    assert wire.closed == 1


def test_after_a_close_rows_can_be_used_and_nothing_is_handed_in() -> None:
    wire = Stub(0, 1)
    sync = bound(wire, [item(0, (0,), 0)])
    sync.submit(0, torch.ones(5))
    sync.synchronize()
    watcher = sync._watcher
    assert watcher is not None
    assert watcher._thread.is_alive()
    sync.close()
    assert not watcher._thread.is_alive()
    sync.wait(0)
    with pytest.raises(RuntimeError, match="after it was closed"):
        sync.submit(0, torch.ones(5))
