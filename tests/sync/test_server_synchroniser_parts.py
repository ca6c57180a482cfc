"""The parts of a synchroniser, each alone: no threads, no wire but a list."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from raddle.sync.incoming_messages import IncomingMessages
from raddle.sync.item import Item, UpdateEvent
from raddle.sync.outgoing_messages import OutgoingMessages
from raddle.sync.parameter_server import RowUpdater
from raddle.sync.rank_failure import RankFailure
from raddle.sync.stale_server import StaleServer
from raddle.sync.sum_issuer import SumIssuer, SummedItem
from raddle.sync.synchronous_server import StepSums, SynchronousServer
from raddle.sync.worker import Worker
from raddle.transport.wire import PULL, PUSH, Counters, Frame

BOTH = (0, 1)


def item(number: int = 0, workers: tuple[int, ...] = BOTH, home: int = 0) -> Item:
    return Item(number, f"w{number}", workers, home, 2, torch.float32, number)


class Rows:
    """Rows at a home, from which gradients are subtracted; what it sends and gives back is kept."""

    def __init__(self, *items: Item) -> None:
        self.rows = {i.number: torch.zeros(2) for i in items}
        self.sent: list[tuple[int, Frame, list[float]]] = []
        self.back: list[tuple[int, int]] = []
        self.updates = RowUpdater(0, self.apply, None)

    def apply(self, number: int, clock: int, gradient: Tensor) -> None:
        self.rows[number] -= gradient

    def send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        self.sent.append((target, frame, payload.tolist()))

    def returned(self, number: int, clock: int) -> None:
        self.back.append((number, clock))


def summing(own: Rows, **options: Any) -> SynchronousServer:
    home = SynchronousServer(
        0, own.updates, own.send, own.returned, **{"step_sums": None, "admitted": None, **options}
    )
    for number, rows in own.rows.items():
        home.bind(item(number), rows, None)
    return home


def test_a_home_that_sums_updates_once_for_all_workers() -> None:
    own = Rows(item())
    home = summing(own)
    home.push(1, 0, 1, torch.tensor([1.0, 2.0]))
    assert [w.missing for w in home.stalled_items()] == [(0,)]
    assert not home.is_updated_to(1)
    home.push(0, 0, 1, torch.tensor([10.0, 20.0]))
    assert own.updates.log == [UpdateEvent(0, -1, 1, 1)]
    assert own.sent == [(1, Frame(PULL, 0, 1, 1), [-11.0, -22.0])]
    assert own.back == [(0, 1)]
    assert home.stalled_items() == []
    assert home.is_updated_to(1)
    with pytest.raises(ValueError, match="whose last had clock 1"):
        home.push(1, 0, 1, torch.zeros(2))


def test_updates_wait_until_their_clock_is_admitted() -> None:
    own = Rows(item(0), item(1))
    home = summing(own, admitted=0)
    for number in (1, 0):
        for worker in BOTH:
            home.push(worker, number, 1, torch.ones(2))
    assert own.back == []
    home.admit(1)
    assert own.back == [(0, 1), (1, 1)]  # the urgent one first


def test_with_a_barrier_the_caller_updates() -> None:
    own = Rows(item())
    barrier = StepSums(RankFailure(None))
    home = summing(own, step_sums=barrier)
    assert not home.completion_event().is_set()
    assert [w.missing for w in home.stalled_items()] == [
        BOTH
    ]  # nobody has begun, and all are missing
    for worker in BOTH:
        home.push(worker, 0, 1, torch.ones(2))
    assert home.completion_event().is_set()
    assert barrier.sums()[0].tolist() == [2.0, 2.0]
    assert own.sent == []
    home.publish()
    assert [frame for _, frame, _ in own.sent] == [Frame(PULL, 0, 1, 1)]
    assert barrier.sums() == {}


def test_a_home_with_staleness_updates_with_each_gradient() -> None:
    own = Rows(item())
    home = StaleServer(0, own.updates, own.send, own.returned, 1)
    home.bind(item(), own.rows[0], None)
    bound = own.rows[0]
    own.rows[0] = home.items[0].master
    home.push(1, 0, 1, torch.ones(2))
    assert own.sent == [(1, Frame(PULL, 0, 1, 1), [-1.0, -1.0])]  # one step ahead is fine
    home.push(1, 0, 2, torch.ones(2))
    assert len(own.sent) == 1
    assert [w.missing for w in home.stalled_items()] == [(0,)]
    assert bound.tolist() == [0.0, 0.0]  # its own worker still computes with them
    home.push(0, 0, 1, torch.ones(2))
    assert own.sent[1:] == [(1, Frame(PULL, 0, 2, 3), [-3.0, -3.0])]
    assert own.back == [(0, 1)]
    assert bound.tolist() == [-3.0, -3.0]
    assert [event.worker for event in own.updates.log] == [1, 1, 0]


def test_an_update_that_raises_names_the_item() -> None:
    def refuse(number: int, clock: int, gradient: Tensor) -> None:
        raise KeyError("lr")

    own = Rows(item())
    own.updates = RowUpdater(0, refuse, None)
    home = summing(own)
    home.push(1, 0, 1, torch.ones(2))
    with pytest.raises(RuntimeError, match="rank 0 could not update 'w0' at clock 1: KeyError"):
        home.push(0, 0, 1, torch.ones(2))


def worker(failure: RankFailure, *, patience: float = 0.02) -> Worker:
    return Worker(1, failure, list, stall=0.01, fail_after=patience, record=None)


def test_a_worker_waits_for_what_it_has_handed_in() -> None:
    rows, mine = torch.zeros(2), worker(RankFailure(None))
    mine.bind(item(), rows)
    mine.wait(0)  # nothing is under way
    assert mine.begin_push(0) == 1
    assert mine.outstanding() == [item()]
    mine.receive(0, item(), 1, torch.ones(2))
    mine.wait(0)
    assert rows.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="each comes back once, in order"):
        mine.mark_returned(0, 1)


def test_a_worker_that_waits_too_long_says_for_whom() -> None:
    told: list[str] = []
    mine = worker(RankFailure(told.append))
    mine.bind(item(), torch.zeros(2))
    mine.begin_push(0)
    with pytest.raises(TimeoutError, match="for rank 0 to send back 'w0'"):
        mine.wait(0)
    assert len(told) == 1


def test_a_failure_wakes_a_worker() -> None:
    failure = RankFailure(None)
    mine = worker(failure, patience=60.0)
    mine.bind(item(), torch.zeros(2))
    mine.begin_push(0)
    waker = threading.Thread(target=failure.set_reason, args=("rank 0 is gone",))
    waker.start()
    with pytest.raises(RuntimeError, match="rank 0 is gone"):
        mine.wait(0)
    waker.join()


def test_messages_go_to_whom_they_are_for() -> None:
    own, failure = Rows(item()), RankFailure(None)
    home, mine = summing(own), worker(failure)
    there = item(1, home=1)
    incoming = IncomingMessages(0, [item(), there], home, mine, failure)
    part = torch.ones(2).view(torch.uint8)
    incoming(1, Frame(PUSH, 0, 1), part)
    assert [w.missing for w in home.stalled_items()] == [(0,)]
    mine.bind(there, torch.zeros(2))
    mine.begin_push(1)
    incoming(1, Frame(PULL, 1, 1), part)
    assert mine.outstanding() == []
    incoming(1, Frame(PUSH, 1, 1), part)
    with pytest.raises(ValueError, match="got a gradient of 'w1' from rank 1"):
        failure.check()
    assert incoming.close()
    assert not incoming.close()


class Wire:
    """Never sends."""

    rank, size = 0, 2
    sent: dict[int, int]

    def __init__(self) -> None:
        self.counters = Counters(messages=5)

    def send(self, *message: object) -> None:
        pass


def test_what_does_not_leave_in_time_is_a_failure() -> None:
    wire: Any = Wire()
    outgoing = OutgoingMessages(wire, RankFailure(None), 0.01)
    outgoing.wait_until_sent()
    outgoing.send(1, Frame(PUSH, 0, 1), torch.ones(2), 0)
    with pytest.raises(TimeoutError, match="for 1 messages to leave"):
        outgoing.wait_until_sent()
    wire.counters.messages += 1
    OutgoingMessages(wire, RankFailure(None), 0.01).wait_until_sent()


class Sums:
    """Writes down what is summed."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def all_reduce(self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = "") -> Any:
        self.left.append(tag)
        return None


def test_sums_leave_in_the_order_of_all_ranks() -> None:
    transport: Any = Sums()
    held = {n: SummedItem(item(n)) for n in range(3)} | {3: SummedItem(item(3, workers=(0,)))}
    for own in held.values():
        own.gradient = torch.ones(2)
    departures = SumIssuer(held, [2, 3, 0, 1], transport, hold_back=False)
    assert departures.order == [2, 0, 1]  # alone, nothing is summed
    for number in (0, 3, 2):
        departures.add(number)
    assert transport.left == [2, 0]
    assert departures.overtaken == 1
    departures.add(1)
    departures.next_step()
    departures.add(0)
    assert transport.left == [2, 0, 1]


def test_sums_that_are_held_leave_together() -> None:
    transport: Any = Sums()
    held = {n: SummedItem(item(n)) for n in range(2)}
    for own in held.values():
        own.gradient = torch.ones(2)
    departures = SumIssuer(held, [1, 0], transport, hold_back=True)
    departures.add(1)
    departures.add(0)
    assert transport.left == []
    departures.release()
    assert transport.left == [1, 0]
