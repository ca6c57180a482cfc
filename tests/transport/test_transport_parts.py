"""Unit tests of the parts of transports: a process group of this process only, no other ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from raddle.transport import failures
from raddle.transport.base import DOWN, UP, WaitLabel
from raddle.transport.failures import Failures
from raddle.transport.inbox import Inbox, WireFailure
from raddle.transport.local_peers import LocalPeers
from raddle.transport.pending_work import PendingWork
from raddle.transport.point_to_point import PointToPoint
from raddle.transport.process_collectives import ProcessCollectives
from raddle.transport.process_groups import ProcessGroups
from raddle.transport.thread_transport import Hub
from raddle.transport.wire import PUSH, Frame

RECEIVE = WaitLabel("receive from", 1, 5, "halo")


class FakeFailureChannel:
    """Calls on_failure at once when a failure is reported."""

    def __init__(self, *_: Any) -> None:
        self.first_failure: tuple[int, str] | None = None
        self.on_failure = _[3] if len(_) > 3 else None

    def wait_for_failure(self, seconds: float) -> tuple[int, str] | None:
        return self.first_failure

    def report(self, rank: int, reason: str) -> None:
        self.first_failure = rank, reason
        if self.on_failure is not None:
            self.on_failure(rank, reason)

    def close(self) -> None:
        pass


@pytest.fixture
def failures_of_0(monkeypatch: pytest.MonkeyPatch) -> Failures:
    monkeypatch.setattr(failures, "FailureChannel", FakeFailureChannel)
    return Failures(0, 20.0, limited=True)


def test_before_anybody_listens_all_is_well(failures_of_0: Failures) -> None:
    failures_of_0.check()
    failures_of_0.report("nobody hears this")
    assert failures_of_0.first_failure is None
    failures_of_0.close()


def test_a_failure_stops_those_who_wait_and_then_breaks_the_lines(failures_of_0: Failures) -> None:
    order: list[str] = []
    failures_of_0.on_failure(lambda sentence: order.append(sentence))
    failures_of_0.start_listening(
        2, list, [lambda: order.append("words"), lambda: order.append("groups")]
    )
    failures_of_0._channel.report(1, "fire")  # type: ignore[union-attr]
    assert order == ["rank 0 stops: rank 1 failed: fire", "words", "groups"]
    failures_of_0.on_failure(lambda sentence: order.append(f"late: {sentence}"))
    assert order[3] == "late: rank 0 stops: rank 1 failed: fire"
    with pytest.raises(RuntimeError, match="rank 0 stops: rank 1 failed: fire"):
        failures_of_0.check()
    explained = failures_of_0.explain(RECEIVE, 0.1, RuntimeError("Connection closed by peer"))
    assert str(explained) == "rank 0 stops: rank 1 failed: fire"


@pytest.mark.parametrize(
    ("seconds", "said", "kind", "sentence"),
    [
        (20.0, "anything", TimeoutError, "has waited 20.0 s to receive halo (tag 5) from rank 1"),
        (3.0, "Timed out waiting", TimeoutError, "has waited 3.0 s to receive halo"),
        (3.0, "Broken. At line 7", RuntimeError, "cannot receive halo (tag 5) from rank 1, after 3.0 s"),
    ],
)  # fmt: skip
def test_a_wait_that_fails_is_put_into_words(
    failures_of_0: Failures, seconds: float, said: str, kind: type[Exception], sentence: str
) -> None:
    explained = failures_of_0.explain(RECEIVE, seconds, RuntimeError(said))
    assert type(explained) is kind
    assert sentence in str(explained)
    assert "At line 7" not in str(explained)
    assert (
        type(failures_of_0.explain_broken_connection(RECEIVE, 1.0, TimeoutError())) is TimeoutError
    )


def test_torch_is_told_a_limit_unless_it_would_hold_up_the_host() -> None:
    assert [t.total_seconds() for t in Failures(0, 7.0, limited=True).wait_args] == [7.0]
    unlimited = Failures(0, 7.0, limited=False)
    unlimited.set_timeout(1.0)
    assert unlimited.wait_args == ()
    assert unlimited.timeout == 1.0


class Work:
    def __init__(self, error: str = "") -> None:
        self.error, self.waited = error, 0

    def wait(self, *limit: object) -> None:
        self.waited += 1
        if self.error:
            raise RuntimeError(self.error)


def test_what_has_begun_is_waited_for_once(failures_of_0: Failures) -> None:
    work: Any = Work()
    begun = PendingWork(failures_of_0, work, RECEIVE)
    begun.wait()
    begun.wait()
    assert work.waited == 1
    broken: Any = Work("Timed out")
    with pytest.raises(TimeoutError, match="to receive halo"):
        PendingWork(failures_of_0, broken, RECEIVE).wait()
    failures_of_0.start_listening(2, list, [])
    failures_of_0.report("fire")
    aborted: Any = Work()
    with pytest.raises(RuntimeError, match="rank 0 failed: fire"):  # NCCL returns as if it had come
        PendingWork(failures_of_0, aborted, RECEIVE).wait()
    assert aborted.waited == 0


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ProcessGroups]:
    """Process groups of a single process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    groups = ProcessGroups(torch.device("cpu"), "gloo", 20.0)
    groups.connect()
    yield groups
    groups.close(failed=False)
    assert dist.is_initialized()  # it was the user's
    dist.destroy_process_group()


def test_groups_are_made_once(alone: ProcessGroups) -> None:
    assert (alone.rank, alone.size, alone.everyone) == (0, 1, (0,))
    sums = alone.collectives[0,]
    made = alone.prepare([(0,)], [UP])
    assert made.count == 3
    assert alone.collectives == {(0,): sums}
    assert alone.service is not None
    assert alone.service is not sums
    assert alone.messages[UP] is alone.messages[DOWN] is not sums


def test_collectives_of_one(alone: ProcessGroups) -> None:
    collectives = ProcessCollectives(alone, Failures(0, 20.0, limited=True))
    buffer = torch.arange(3.0)
    collectives.all_reduce((0,), 0, buffer, "a sum").wait()
    collectives.broadcast(0, buffer).wait()
    collectives.barrier()
    assert buffer.tolist() == [0.0, 1.0, 2.0]
    assert collectives.collective_bytes == {("all_reduce", (0,)): 12}
    assert collectives.all_gather_objects({"a": 1}) == [{"a": 1}]


def test_a_single_process_has_no_local_peers(alone: ProcessGroups) -> None:
    messages = PointToPoint(alone, Failures(0, 20.0, limited=True), lambda value: [value])
    assert messages.sent == {}
    messages.shut_down()
    messages.close()


class Shared:
    """An all-gather between two threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)
        self._values: list[Any] = [None, None]

    def of(self, rank: int) -> Any:
        def share(value: Any) -> list[Any]:
            self._barrier.wait(20)
            self._values[rank] = value
            self._barrier.wait(20)
            return list(self._values)

        return share


@pytest.mark.parametrize("elements", [0, 3, 100_000])
def test_local_peers_pass_messages_of_any_size(elements: int) -> None:
    shared, ends = Shared(), dict[int, LocalPeers]()

    def make(rank: int) -> None:
        ends[rank] = LocalPeers(shared.of(rank), Failures(rank, 20.0, limited=True))

    threads = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    if ends[0].ranks != {1}:
        pytest.skip("no shared memory here")
    message = torch.arange(float(elements))
    ends[1].send(0, 5, message, WaitLabel("send to", 0, 5))
    assert torch.equal(ends[0].receive(RECEIVE, elements, torch.float32), message)
    if elements == 3:
        ends[1].send(0, 5, message, WaitLabel("send to", 0, 5))
        with pytest.raises(
            RuntimeError, match=r"got 12 bytes to receive halo .* and 16 are needed"
        ):
            ends[0].receive(RECEIVE, 4, torch.float32)
    for end in ends.values():
        end.shut_down()
    with pytest.raises(RuntimeError, match="rank 0 cannot receive halo"):
        ends[0].receive(RECEIVE, elements, torch.float32)
    for end in ends.values():
        end.close()


def test_an_inbox_refuses_what_was_not_expected() -> None:
    inbox, taken = Inbox(), list[tuple[int, Frame]]()
    frame = Frame(PUSH, 3, 1)
    assert inbox.refusal(frame, 8) == ""
    inbox.expect({3: 4})
    assert inbox.refusal(frame, 8) == "item 3 has at most 4 bytes, not 8"
    assert not inbox.opened.is_set()
    inbox.open(lambda source, what, payload: taken.append((source, what)))
    inbox.deliver(1, frame, torch.empty(0))
    assert taken == [(1, frame)]


def test_only_the_first_failure_is_told() -> None:
    first, reasons = WireFailure(), list[str]()
    first.set_callback(reasons.append)
    first.report("a")
    first.report("b")
    assert reasons == [first.reason] == ["a"]
    ended = WireFailure()
    ended.set_callback(reasons.append)
    ended.ignore_further()
    ended.report("c")
    assert reasons == ["a"]
    assert ended.reason == ""


def test_ranks_that_are_threads_meet_by_turns() -> None:
    hub = Hub(2)
    buffers = [torch.tensor([1.0]), torch.tensor([2.0])]
    doing = WaitLabel("sum over", (0, 1))

    def meet(rank: int, buffer: Tensor) -> Any:
        return hub.join_collective(rank, "sum", (0, 1), 0, buffer, doing)

    waiting = meet(0, buffers[0]), meet(1, buffers[1])
    for pending in waiting:
        pending.wait()
    assert buffers[0] == buffers[1] == 3.0
    assert not hub.collectives
    other = meet(0, buffers[0]), hub.join_collective(1, "sum", (0, 1), 7, buffers[1], doing)
    with pytest.raises(RuntimeError, match=r"rank 0 brings .* with tag 0, rank 1 .* with tag 7"):
        other[1].wait()
