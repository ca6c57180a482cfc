"""A transport whose ranks are threads of this process: for tests, and for small experiments.

It is stricter than torch.distributed: sizes, dtypes and orders that do not match raise an error.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raddle.transport.base import (
    DONE,
    DOWN,
    UP,
    BufferedMessage,
    GroupsMade,
    Pending,
    PendingMessage,
    ShardTransfers,
    WaitLabel,
    stop_error,
    timeout_error,
    total_sent,
)
from raddle.transport.memory_wire import memory_wires
from raddle.transport.shard_messages import ShardMessages
from raddle.transport.wire import Wire


class Hub:
    """The state that the ranks of a run share. `transport(rank)` gives each rank its transport.

    conditions: one for each rank; a rank waits on its own, and others notify it.
    collectives: the sums, broadcasts and barriers that not all ranks have joined yet, by (kind, ranks,
        count): the count-th collective of this kind among these ranks.
    """

    def __init__(self, size: int, timeout: float = 60.0) -> None:
        self.size = size
        self.timeout = timeout  # seconds
        self.first_failure: tuple[int, str] | None = None  # rank and reason
        self.conditions = [threading.Condition(threading.Lock()) for _ in range(size)]
        self.mailboxes = [_Mailbox() for _ in range(size)]  # protected by the rank's condition
        self.collectives: dict[tuple[str, tuple[int, ...], int], _Collective] = {}
        # How many collectives a rank has joined, by (rank, kind, ranks).
        self.counts: dict[tuple[int, str, tuple[int, ...]], int] = defaultdict(int)
        self.lock = threading.Lock()  # of first_failure, collectives and failure_callbacks
        self.wires: list[Wire] = []
        self.failure_callbacks: list[tuple[int, Callable[[str], None]]] = []  # rank, callback

    def transport(self, rank: int) -> ThreadTransport:
        return ThreadTransport(self, rank)

    def wait_until(self, rank: int, ready: Callable[[], bool], label: WaitLabel) -> None:
        """Blocks the thread of a rank until `ready()`; the thread that makes it true notifies the rank."""
        deadline = time.monotonic() + self.timeout
        condition = self.conditions[rank]
        with condition:
            while not ready():
                if self.first_failure is not None:
                    raise stop_error(rank, *self.first_failure)
                remaining_seconds = deadline - time.monotonic()
                if remaining_seconds <= 0:
                    raise timeout_error(rank, self.timeout, label)
                condition.wait(remaining_seconds)

    def deliver(self, source: int, target: int, tag: int, buffer: Tensor) -> Pending:
        """Gives a copy of a buffer to the target."""
        assert buffer.is_contiguous()
        assert not buffer.is_conj(), "others read memory as it is"
        assert not buffer.is_neg(), "others read memory as it is"
        message = buffer.detach().clone()
        _wait_for_stream(message)
        mailbox, condition = self.mailboxes[target], self.conditions[target]
        with condition:
            posted = mailbox.posted.get((source, tag))
            if posted:
                posted.popleft().message = message
                condition.notify_all()
            else:
                mailbox.arrived[source, tag].append(message)
        return DONE

    def notify(self, ranks: Sequence[int]) -> None:
        """Wakes the threads of these ranks, if they wait."""
        for rank in ranks:
            with self.conditions[rank]:
                self.conditions[rank].notify_all()

    def join_collective(
        self,
        rank: int,
        kind: str,
        ranks: tuple[int, ...],
        tag: int,
        buffer: Tensor,
        label: WaitLabel,
    ) -> Pending:
        """Joins the next collective of this kind and these ranks.

        The last rank to join computes the sum. A broadcast has its result as soon as the source has joined.
        kind: "sum", "broadcast" or "barrier". tag: equal on all ranks; of a broadcast, the source.
        label: describes the collective in error messages.
        """
        assert rank in ranks
        if len(ranks) == 1:  # the buffer is the result already
            return DONE
        _wait_for_stream(buffer)
        self.counts[rank, kind, ranks] += 1
        key = kind, ranks, self.counts[rank, kind, ranks]
        with self.lock:
            collective = self.collectives.setdefault(key, _Collective(kind, ranks))
            collective.contribute(rank, tag, buffer)
            complete = len(collective.contributions) == len(ranks)
            if complete:
                del self.collectives[key]
        if kind == "broadcast" and rank == tag:
            collective.result = buffer.detach().clone()
            _wait_for_stream(collective.result)
        elif kind != "broadcast" and complete:
            collective.sum()
        if collective.ready():
            self.notify(ranks)
        return _PendingCollective(self, rank, label, collective, buffer)


class _WithoutGroups:
    """The part of a transport that threads do not need."""

    def prepare(
        self, groups: Sequence[tuple[int, ...]], directions: Sequence[int] = (UP, DOWN)
    ) -> GroupsMade:
        return GroupsMade()  # there are no process groups

    def flush(self) -> None:
        pass  # messages are delivered at once


class ThreadTransport(_WithoutGroups):
    """The transport of one rank; made by `Hub.transport`."""

    early_receives = True  # a receive may be started long before its send: tags match them

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank = rank
        self.size = hub.size
        self.sent: dict[int, int] = defaultdict(int)
        self.collective_bytes: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
        self._hub = hub
        self.shards: ShardTransfers = ShardMessages(
            rank,
            lambda target, tag, buffer, _: hub.deliver(rank, target, tag, buffer),
            self.expect,
            self.collective_bytes,
        )
        self._everyone = tuple(range(hub.size))
        self.timeout, self.failures = hub.timeout, hub
        self._wire: Wire | None = None

    def send(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        self.sent[target] += buffer.nbytes
        return self._hub.deliver(self.rank, target, tag, buffer)

    def receive(self, source: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        assert buffer.is_contiguous()
        pending = _PendingReceive(
            self._hub, self.rank, WaitLabel("receive from", source, tag, what), buffer
        )
        key = source, tag
        mailbox = self._hub.mailboxes[self.rank]
        with self._hub.conditions[self.rank]:
            arrived = mailbox.arrived.get(key)
            if arrived:
                pending.message = arrived.popleft()
            else:
                mailbox.posted[key].append(pending)
        return pending

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        return self.send(target, tag, buffer, what)

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> PendingMessage:
        buffer = like.new_empty(elements)
        return BufferedMessage(self.receive(source, tag, buffer, what), lambda: buffer)

    def all_reduce(
        self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = ""
    ) -> Pending:
        assert buffer.is_contiguous()
        self.collective_bytes["all_reduce", ranks] += buffer.nbytes
        return self._hub.join_collective(
            self.rank, "sum", ranks, tag, buffer, WaitLabel("sum over", ranks, tag, what)
        )

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        assert buffer.is_contiguous()
        label = WaitLabel("broadcast from", source)
        return self._hub.join_collective(
            self.rank, "broadcast", self._everyone, source, buffer, label
        )

    def barrier(self) -> None:
        label = WaitLabel("barrier of", self._everyone)
        self._hub.join_collective(
            self.rank, "barrier", self._everyone, 0, torch.empty(0), label
        ).wait()

    def wire(self) -> Wire:
        if self._wire is None:
            with self._hub.lock:
                self._hub.wires = self._hub.wires or memory_wires(self.size, timeout=self.timeout)
            self._wire = self._hub.wires[self.rank]
        return self._wire

    def total_sent(self) -> dict[int, int]:
        return total_sent(self, self._wire)

    def on_failure(self, stop: Callable[[str], None]) -> None:
        with self._hub.lock:
            self._hub.failure_callbacks.append((self.rank, stop))
            failed = self._hub.first_failure
        if failed is not None:
            stop(str(stop_error(self.rank, *failed)))

    def check(self) -> None:
        if self._hub.first_failure is not None:
            raise stop_error(self.rank, *self._hub.first_failure)

    def fail(self, reason: str) -> None:
        with self._hub.lock:
            first = self._hub.first_failure is None
            if first:
                self._hub.first_failure = self.rank, reason
            callbacks = list(self._hub.failure_callbacks) if first else []
        self._hub.notify(self._everyone)
        for rank, stop in callbacks:
            stop(str(stop_error(rank, self.rank, reason)))

    def close(self) -> None:
        pass


class _PendingReceive:
    """A receive. `message` is None until the message has arrived; `wait` copies it into the buffer."""

    __slots__ = ("_buffer", "_hub", "_label", "_rank", "message")

    def __init__(self, hub: Hub, rank: int, label: WaitLabel, buffer: Tensor) -> None:
        self._hub, self._rank, self._label = hub, rank, label
        self._buffer: Tensor | None = buffer
        self.message: Tensor | None = None

    def wait(self) -> None:
        if self._buffer is None:
            return
        if self.message is None:
            self._hub.wait_until(self._rank, self._ready, self._label)
        assert self.message is not None
        if not _same_kind(self.message, self._buffer):
            raise RuntimeError(
                f"rank {self._rank} cannot {self._label}: {_describe(self.message)} were sent, "
                f"{_describe(self._buffer)} are expected"
            )
        _copy(self._buffer, self.message)
        self._buffer = self.message = None

    def _ready(self) -> bool:
        return self.message is not None


class _Mailbox:
    """The messages to one rank, by (source, tag): posted receives, or messages without a receive."""

    def __init__(self) -> None:
        self.posted: dict[tuple[int, int], deque[_PendingReceive]] = defaultdict(deque)
        self.arrived: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)


class _Collective:
    """A collective: what each rank of the group contributes, and the result for all."""

    def __init__(self, kind: str, ranks: tuple[int, ...]) -> None:
        self.kind, self.ranks = kind, ranks
        self.contributions: dict[int, tuple[int, Tensor]] = {}  # by rank: tag, buffer
        self.result: Tensor | None = None
        self.error = ""

    def contribute(self, rank: int, tag: int, buffer: Tensor) -> None:
        """Adds a rank's buffer. Sets `error` if it does not match an earlier one."""
        for first_rank, (first_tag, first_buffer) in self.contributions.items():
            if tag != first_tag or not _same_kind(buffer, first_buffer):
                name = "source" if self.kind == "broadcast" else "tag"
                self.error = (
                    f"rank {first_rank} brings {_describe(first_buffer)} with {name} {first_tag}, "
                    f"rank {rank} {_describe(buffer)} with {name} {tag}"
                )
            break  # the first one is enough, because the earlier contributions match each other
        self.contributions[rank] = tag, buffer

    def sum(self) -> None:
        """Sums the contributions in rank order, so that the result does not depend on their arrival."""
        if self.error:
            return
        first, *others = [self.contributions[rank][1].detach() for rank in self.ranks]
        total = first.clone()
        for buffer in others:
            total += buffer.view(total.shape).to(total.device)
        _wait_for_stream(total)
        self.result = total

    def ready(self) -> bool:
        return self.result is not None or self.error != ""


class _PendingCollective:
    """A rank's part in a collective. `wait` copies the result into the rank's buffer."""

    __slots__ = ("_buffer", "_collective", "_hub", "_label", "_rank")

    def __init__(
        self, hub: Hub, rank: int, label: WaitLabel, collective: _Collective, buffer: Tensor
    ) -> None:
        self._hub, self._rank, self._label, self._buffer = hub, rank, label, buffer
        self._collective: _Collective | None = collective

    def wait(self) -> None:
        collective = self._collective
        if collective is None:
            return
        if not collective.ready():
            self._hub.wait_until(self._rank, collective.ready, self._label)
        if collective.error or collective.result is None:
            raise RuntimeError(f"rank {self._rank} cannot {self._label}: {collective.error}")
        _copy(self._buffer, collective.result)
        self._collective = None


def _same_kind(a: Tensor, b: Tensor) -> bool:
    """Returns whether two tensors have the same number of elements and the same dtype."""
    return a.numel() == b.numel() and a.dtype == b.dtype


def _describe(tensor: Tensor) -> str:
    return f"{tensor.numel()} elements of {str(tensor.dtype).removeprefix('torch.')}"


def _copy(buffer: Tensor, result: Tensor) -> None:
    buffer.detach().copy_(result.view(buffer.shape))
    _wait_for_stream(buffer)


def _wait_for_stream(tensor: Tensor) -> None:
    """Waits for this thread's GPU work, because another thread may use another stream."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
