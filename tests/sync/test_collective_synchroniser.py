"""CollectiveSynchroniser: all ranks sum in one order, whenever gradients are ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timeouts import HANG
from torch import Tensor

from raddle.sync.collective_synchroniser import CollectiveSynchroniser
from raddle.sync.consistency import check_orders
from raddle.sync.item import Item
from raddle.transport.exchange import exchange_objects
from raddle.transport.thread_transport import Hub, ThreadTransport

CPU = torch.device("cpu")


class Listening:
    """A transport that records its all-reduces, in order."""

    def __init__(self, transport: ThreadTransport) -> None:
        self._transport = transport
        self.summed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def all_reduce(self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = "") -> Any:
        self.summed.append(tag)
        return self._transport.all_reduce(ranks, tag, buffer, what)


class Rank:
    """One rank with items of three elements each; records the updates."""

    def __init__(
        self, transport: ThreadTransport, order: Sequence[int], groups: Sequence[tuple[int, ...]],
        debug: bool = False,
    ) -> None:  # fmt: skip
        self.rank, self.transport = transport.rank, Listening(transport)
        self.applied: list[tuple[int, int, float]] = []
        items = [Item(n, f"p{n}", who, -1, 3, torch.float32, n) for n, who in enumerate(groups)]
        self.summing = CollectiveSynchroniser(
            items, order, self.transport, self._apply, partial(exchange_objects, transport, CPU),
            debug=debug,
        )  # fmt: skip
        self.numbers = [n for n, who in enumerate(groups) if self.rank in who]

    def _apply(self, number: int, clock: int, gradient: Tensor) -> None:
        self.applied.append((number, clock, float(gradient[0])))

    def ready(self, number: int) -> None:
        self.summing.submit(number, torch.full((3,), 10.0**self.rank * (1 + number)))


def on_ranks(
    size: int,
    make: Callable[[ThreadTransport], Rank],
    work: Callable[[Rank], Any],
    timeout: float = HANG,
) -> tuple[list[Rank], list[BaseException | None]]:
    hub = Hub(size, timeout=timeout)
    ranks = [make(hub.transport(r)) for r in range(size)]
    errors: list[BaseException | None] = [None] * size

    def run(rank: Rank) -> None:
        try:
            work(rank)
        except BaseException as error:
            errors[rank.rank] = error
            rank.transport.fail(str(error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ranks, errors


BOTH = [(0, 1)] * 4


@pytest.mark.parametrize("debug", [False, True])
@given(data=st.data())
def test_all_ranks_sum_in_the_same_order(debug: bool, data: st.DataObject) -> None:
    """Ranks submit in different orders, one of them late; groups overlap in any way."""
    groups = data.draw(
        st.lists(st.sampled_from([(0, 1), (1, 2), (0, 2), (0, 1, 2), (1,)]), min_size=1, max_size=6)
    )
    every = st.permutations(range(len(groups)))
    order, submit_orders = data.draw(every), [data.draw(every) for _ in range(3)]

    def work(rank: Rank) -> None:
        rank.summing.start()
        for _ in range(2):
            for number in submit_orders[rank.rank]:
                if number in rank.numbers:
                    rank.ready(number)
            rank.summing.finish()
        rank.summing.synchronize()

    ranks, errors = on_ranks(3, lambda t: Rank(t, order, groups, debug), work)
    assert errors == [None] * 3
    for rank in ranks:
        mine = [n for n in order if n in rank.numbers and len(groups[n]) > 1]
        assert rank.transport.summed == 2 * mine
        totals = {n: sum(10.0**r * (1 + n) for r in groups[n]) for n in rank.numbers}
        assert sorted(rank.applied) == sorted(
            (n, c, totals[n]) for n in rank.numbers for c in (1, 2)
        )


def test_a_step_ends_before_any_sum_has() -> None:
    """Rank 1 comes late; rank 0 has ended its step already, and waits for a single item."""
    begun = threading.Event()

    def work(rank: Rank) -> None:
        if rank.rank == 1:
            assert begun.wait(HANG)
        for number in (3, 2, 1, 0):
            rank.ready(number)
        rank.summing.finish()
        if rank.rank == 0:
            assert rank.transport.summed == [3, 0, 1, 2]
            assert rank.applied == []
            assert rank.summing.unapplied == 4
            begun.set()
        rank.summing.wait(0)
        assert rank.applied == [(0, 1, 11.0)]
        assert rank.summing.unapplied == 3
        rank.summing.wait(0)  # once
        assert len(rank.applied) == 1

    ranks, errors = on_ranks(2, lambda t: Rank(t, [3, 0, 1, 2], BOTH), work)
    assert errors == [None, None]
    assert ranks[0].summing.issuer.overtaken == 2  # 0 and 1 pass 2, which was ready before them


def test_nothing_is_waited_for_before_the_step_has_ended() -> None:
    """`wait` before the end of a step returns at once: the rows do not change until the step ends."""

    def work(rank: Rank) -> None:
        rank.ready(0)
        rank.summing.wait(0)
        assert rank.applied == []
        with pytest.raises(RuntimeError, match="submits 'p0' twice in a step"):
            rank.ready(0)
        with pytest.raises(RuntimeError, match=r"without gradients of 'p1' \(and 2 more\)"):
            rank.summing.finish()

    assert on_ranks(2, lambda t: Rank(t, [3, 2, 1, 0], BOTH), work)[1] == [None, None]


def test_orders_that_differ_are_refused_at_the_start() -> None:
    orders = [[0, 1, 2, 3], [3, 2, 1, 0]]
    _, errors = on_ranks(2, lambda t: Rank(t, orders[t.rank], BOTH), lambda r: r.summing.start())
    words = (
        "sum 0 is 'p0' .* on rank 0, and on rank 1 sum 0 is 'p3' .*: give all ranks the same model"
    )
    for error in errors:
        with pytest.raises(ValueError, match=words):
            raise error or AssertionError


def test_debug_finds_an_opposite_order_before_anything_is_summed() -> None:
    """Without `start`, which would refuse the orders: the debug check in a step names ranks and slices."""
    orders = [[0, 1, 2, 3], [3, 2, 1, 0]]

    def work(rank: Rank) -> None:
        for number in range(4):
            rank.ready(number)
        rank.summing.finish()

    ranks, errors = on_ranks(2, lambda t: Rank(t, orders[t.rank], BOTH, debug=True), work)
    words = r"sum 0 of ranks 0 and 1 is 'p0' \(.*step 1\) on rank 0 and 'p3' .* on rank 1"
    for rank, error in zip(ranks, errors, strict=True):
        assert rank.transport.summed == []
        with pytest.raises(ValueError, match=words):
            raise error or AssertionError


def test_orders_are_compared_where_ranks_meet() -> None:
    """Ranks without a common sum may have any order; ranks that sum together must have the same."""
    a, b, c = ((0, 1), "a"), ((1, 2), "b"), ((0, 1, 2), "c")
    check_orders([[a, c], [a, b, c], [b, c]])
    check_orders([[a], [b, a], [b]])
    for every in ([[a, c], [c, a], [c]], [[c], [b, c], [c, b]], [[a], [], []]):
        with pytest.raises(ValueError, match=r"of ranks \d and \d is .* on rank \d"):
            check_orders(every)


@pytest.mark.parametrize("count", [1, 3])
def test_with_a_barrier_the_caller_applies(count: int) -> None:
    def work(rank: Rank) -> None:
        for step in range(count):
            for number in range(4):
                rank.ready(number)
            rank.summing.finish()
            totals = rank.summing.sums()
            assert {n: float(t[0]) for n, t in totals.items()} == {
                n: 11.0 * (1 + n) for n in range(4)
            }
            rank.summing.publish()
            rank.summing.wait(step)
        assert rank.applied == []

    assert on_ranks(2, lambda t: Rank(t, range(4), BOTH), work)[1] == [None, None]


def test_updates_are_plain_in_the_midst_of_any_forward() -> None:
    """An update inside a forward must not create state in inference mode or compute with autocast."""
    seen = []

    class Looking(Rank):
        def _apply(self, number: int, clock: int, gradient: Tensor) -> None:
            made = torch.zeros(2, 2)
            seen.append((made.is_inference(), (made @ made).dtype))

    def work(rank: Rank) -> None:
        for number in range(4):
            rank.ready(number)
        rank.summing.finish()
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            rank.summing.synchronize()

    assert on_ranks(2, lambda t: Looking(t, range(4), BOTH), work)[1] == [None, None]
    assert set(seen) == {(False, torch.float32)}


def test_a_rank_that_fails_ends_the_others() -> None:
    def work(rank: Rank) -> None:
        if rank.rank == 1:
            raise RuntimeError("no more data")
        for number in range(4):
            rank.ready(number)
        rank.summing.finish()
        rank.summing.synchronize()

    _, errors = on_ranks(2, lambda t: Rank(t, range(4), BOTH), work)
    assert "rank 1 failed: no more data" in str(errors[0])


@pytest.mark.parametrize("answered", [True, False])
def test_drains_for_a_while(answered: bool) -> None:
    """`drain` at the end of a rank: other ranks still need it, or no rank answers."""

    def work(rank: Rank) -> None:
        if rank.rank == 0 or answered:
            rank.ready(0)
            rank.summing.finish()
        rank.summing.drain(0.2)
        rank.summing.close()
        with pytest.raises(RuntimeError, match="after it was closed"):
            rank.ready(0)

    assert on_ranks(2, lambda t: Rank(t, [0], BOTH[:1]), work, timeout=1)[1] == [None, None]
