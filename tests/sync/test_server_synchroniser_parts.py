"""Unit tests of the parts of the synchronisers: without threads, with a list as the wire."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from raddle.sync.incoming_messages import IncomingMessages
from raddle.sync.item import Item, UpdateEvent
from raddle.sync.item_rows import ItemRows
from raddle.sync.outgoing_messages import OutgoingMessages
from raddle.sync.parameter_server import RowUpdater
from raddle.sync.rank_failure import RankFailure
from raddle.sync.stale_server import StaleServer
from raddle.sync.sum_issuer import SumIssuer, SummedItem
from raddle.sync.synchronous_server import StepSums, SynchronousServer
from raddle.sync.worker import Worker
from raddle.transport.wire import PULL, PUSH, Counters, Frame

BOTH = (0, 1)


def item(number: int = 0, workers: tuple[int, ...] = BOTH, server: int = 0) -> Item:
    return Item(number, f"w{number}", workers, server, 2, torch.float32, number)


class ServerState:
    """The rows of a server, from which gradients are subtracted; records what the server sends back."""

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


def summing(state: ServerState, **options: Any) -> SynchronousServer:
    server = SynchronousServer(
        0,
        state.updates,
        state.send,
        state.returned,
        **{"step_sums": None, "admitted": None, **options},
    )
    for number, rows in state.rows.items():
        server.bind(item(number), ItemRows(rows), None)
    return server


def test_a_synchronous_server_updates_once_for_all_workers() -> None:
    state = ServerState(item())
    server = summing(state)
    server.push(1, 0, 1, torch.tensor([1.0, 2.0]))
    assert [w.missing for w in server.stalled_items()] == [(0,)]
    assert not server.is_updated_to(1)
    server.push(0, 0, 1, torch.tensor([10.0, 20.0]))
    assert state.updates.log == [UpdateEvent(0, -1, 1, 1)]
    assert state.sent == [(1, Frame(PULL, 0, 1, 1), [-11.0, -22.0])]
    assert state.back == [(0, 1)]
    assert server.stalled_items() == []
    assert server.is_updated_to(1)
    with pytest.raises(ValueError, match="whose last had clock 1"):
        server.push(1, 0, 1, torch.zeros(2))


def test_updates_wait_until_their_clock_is_admitted() -> None:
    state = ServerState(item(0), item(1))
    server = summing(state, admitted=0)
    for number in (1, 0):
        for worker in BOTH:
            server.push(worker, number, 1, torch.ones(2))
    assert state.back == []
    server.admit(1)
    assert state.back == [(0, 1), (1, 1)]  # the urgent one first


def test_with_a_barrier_the_caller_updates() -> None:
    state = ServerState(item())
    step_sums = StepSums(RankFailure(None))
    server = summing(state, step_sums=step_sums)
    assert not server.completion_event().is_set()
    assert [w.missing for w in server.stalled_items()] == [
        BOTH
    ]  # nobody has begun, and all are missing
    for worker in BOTH:
        server.push(worker, 0, 1, torch.ones(2))
    assert server.completion_event().is_set()
    assert step_sums.sums()[0].tolist() == [2.0, 2.0]
    assert state.sent == []
    server.publish()
    assert [frame for _, frame, _ in state.sent] == [Frame(PULL, 0, 1, 1)]
    assert step_sums.sums() == {}


def test_a_stale_server_updates_with_each_gradient() -> None:
    state = ServerState(item())
    server = StaleServer(0, state.updates, state.send, state.returned, 1)
    server.bind(item(), ItemRows(state.rows[0]), None)
    bound = state.rows[0]
    (state.rows[0],) = server.items[0].master.parts
    server.push(1, 0, 1, torch.ones(2))
    assert state.sent == [(1, Frame(PULL, 0, 1, 1), [-1.0, -1.0])]  # one step ahead is fine
    server.push(1, 0, 2, torch.ones(2))
    assert len(state.sent) == 1
    assert [w.missing for w in server.stalled_items()] == [(0,)]
    assert bound.tolist() == [0.0, 0.0]  # its own worker still computes with them
    server.push(0, 0, 1, torch.ones(2))
    assert state.sent[1:] == [(1, Frame(PULL, 0, 2, 3), [-3.0, -3.0])]
    assert state.back == [(0, 1)]
    assert bound.tolist() == [-3.0, -3.0]
    assert [event.worker for event in state.updates.log] == [1, 1, 0]


def test_an_update_that_raises_names_the_item() -> None:
    def refuse(number: int, clock: int, gradient: Tensor) -> None:
        raise KeyError("lr")

    state = ServerState(item())
    state.updates = RowUpdater(0, refuse, None)
    server = summing(state)
    server.push(1, 0, 1, torch.ones(2))
    with pytest.raises(RuntimeError, match="rank 0 could not update 'w0' at clock 1: KeyError"):
        server.push(0, 0, 1, torch.ones(2))


def worker(failure: RankFailure, *, patience: float = 0.02) -> Worker:
    return Worker(1, failure, list, stall=0.01, fail_after=patience, record=None)


def test_a_worker_waits_for_what_it_has_handed_in() -> None:
    rows, mine = torch.zeros(2), worker(RankFailure(None))
    mine.bind(item(), ItemRows(rows))
    mine.wait(0)  # nothing is under way
    assert mine.begin_push(0) == 1
    assert mine.outstanding() == [item()]
    mine.receive(0, item(), 1, torch.ones(2))
    mine.wait(0)
    assert rows.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="each comes back once, in order"):
        mine.mark_returned(0, 1)


def test_a_worker_that_waits_too_long_says_for_whom() -> None:
    reasons: list[str] = []
    mine = worker(RankFailure(reasons.append))
    mine.bind(item(), ItemRows(torch.zeros(2)))
    mine.begin_push(0)
    with pytest.raises(TimeoutError, match="for rank 0 to send back 'w0'"):
        mine.wait(0)
    assert len(reasons) == 1


def test_a_failure_wakes_a_worker() -> None:
    failure = RankFailure(None)
    mine = worker(failure, patience=60.0)
    mine.bind(item(), ItemRows(torch.zeros(2)))
    mine.begin_push(0)
    waker = threading.Thread(target=failure.set_reason, args=("rank 0 is gone",))
    waker.start()
    with pytest.raises(RuntimeError, match="rank 0 is gone"):
        mine.wait(0)
    waker.join()


def test_messages_go_to_whom_they_are_for() -> None:
    state, failure = ServerState(item()), RankFailure(None)
    server, mine = summing(state), worker(failure)
    there = item(1, server=1)
    incoming = IncomingMessages(0, [item(), there], server, mine, failure)
    part = torch.ones(2).view(torch.uint8)
    incoming(1, Frame(PUSH, 0, 1), part)
    assert [w.missing for w in server.stalled_items()] == [(0,)]
    mine.bind(there, ItemRows(torch.zeros(2)))
    mine.begin_push(1)
    incoming(1, Frame(PULL, 1, 1), part)
    assert mine.outstanding() == []
    incoming(1, Frame(PUSH, 1, 1), part)
    with pytest.raises(ValueError, match="got a gradient of 'w1' from rank 1"):
        failure.check()
    assert incoming.close()
    assert not incoming.close()


class Wire:
    """A wire that never sends."""

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
    """A transport that records its all-reduces."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def all_reduce(self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = "") -> Any:
        self.left.append(tag)
        return None


def test_sums_leave_in_the_order_of_all_ranks() -> None:
    transport: Any = Sums()
    entries = {n: SummedItem(item(n)) for n in range(3)} | {3: SummedItem(item(3, workers=(0,)))}
    for entry in entries.values():
        entry.gradient = torch.ones(2)
    issuer = SumIssuer(entries, [2, 3, 0, 1], transport, hold_back=False)
    assert issuer.order == [2, 0, 1]  # alone, nothing is summed
    for number in (0, 3, 2):
        issuer.add(number)
    assert transport.left == [2, 0]
    assert issuer.overtaken == 1
    issuer.add(1)
    issuer.next_step()
    issuer.add(0)
    assert transport.left == [2, 0, 1]


def test_sums_that_are_held_leave_together() -> None:
    transport: Any = Sums()
    entries = {n: SummedItem(item(n)) for n in range(2)}
    for entry in entries.values():
        entry.gradient = torch.ones(2)
    issuer = SumIssuer(entries, [1, 0], transport, hold_back=True)
    issuer.add(1)
    issuer.add(0)
    assert transport.left == []
    issuer.release()
    assert transport.left == [1, 0]
