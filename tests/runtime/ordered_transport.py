"""A transport of threads that is as strict as NCCL about order; Hub's place is taken by OrderedHub.

Messages have no tags. All operations of a rank (batches of messages, and collectives) run one after the
other, as if the GPU had room for one kernel: an operation begins when all before it on its rank have ended,
and ends when every other rank that takes part has reached it. So a program that could deadlock on NCCL does
so here. Only groups that were prepared may be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from timeouts import HANG
from torch import Tensor

from raddle.transport.base import DOWN, UP, GroupsMade, Pending, PendingMessage
from raddle.transport.shard_messages import ShardMessages
from raddle.transport.thread_transport import Hub, ThreadTransport

# Tags by which the threads tell apart what NCCL tells apart by its order.
TAGS, REPLIES = (
    {UP: 0, DOWN: 1},
    {UP: 2, DOWN: 3},
)  # by direction: of messages, and of replies to them
FIRST_TAG = 4  # of the messages that make an all-gather or a reduce-scatter


class OrderedHub(Hub):
    """Gives each rank an OrderedTransport."""

    def __init__(self, size: int, timeout: float = HANG) -> None:
        super().__init__(size, timeout)

    def transport(self, rank: int) -> ThreadTransport:
        return OrderedTransport(self, rank)


class _Operation:
    """An operation that waits for its turn, or runs. begin: runs it, if it has not begun."""

    def __init__(self, begin: Callable[[], object] = lambda: None) -> None:
        self.begin, self.future = begin, Future[Any]()

    def wait(self) -> None:
        self.begin()
        self.future.result(2 * HANG)


class _Message(_Operation):
    def __init__(self, begin: Callable[[], object], buffer: Tensor) -> None:
        super().__init__(begin)
        self.buffer = buffer

    def wait(self) -> Tensor:  # type: ignore[override]
        super().wait()
        return self.buffer


class OrderedTransport(ThreadTransport):
    early_receives = False

    def __init__(self, hub: Hub, rank: int) -> None:
        super().__init__(hub, rank)
        self.hub = hub
        self.stream = ThreadPoolExecutor(1)  # runs this rank's operations in order
        self.batch: list[tuple[int, bool, int, _Message]] = []  # direction, sends, peer
        self.prepared: set[object] = {tuple(range(hub.size))}
        expect = super().expect
        unordered = ShardMessages(
            rank,
            lambda target, tag, buffer, _: hub.deliver(rank, target, FIRST_TAG + tag, buffer),
            lambda source, tag, like, count, _: expect(source, FIRST_TAG + tag, like, count),
            self.collective_bytes,
        )
        self.shards = _OrderedShards(self, unordered)

    def prepare(
        self, groups: Sequence[tuple[int, ...]], directions: Sequence[int] = (UP, DOWN)
    ) -> GroupsMade:
        self.prepared.update(groups)
        self.prepared.update(directions)
        return GroupsMade()

    def run(self, operation: _Operation, work: Callable[[], object]) -> _Operation:
        """Starts an operation after those before it."""
        operation.future = self.stream.submit(work)
        return operation

    # -- messages

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        self.sent[target] += buffer.nbytes
        message = _Message(self.flush, buffer)
        self.batch.append((UP if target > self.rank else DOWN, True, target, message))
        return message

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> PendingMessage:
        message = _Message(self.flush, like.new_empty(elements))
        self.batch.append((UP if source < self.rank else DOWN, False, source, message))
        return message

    def flush(self) -> None:
        batch, self.batch = self.batch, []
        for direction in (UP, DOWN):
            part = [entry[1:] for entry in batch if entry[0] == direction]
            if part:
                assert direction in self.prepared
                operation = self.run(_Operation(), partial(self._exchange, direction, part))
                for _, _, message in part:
                    message.begin, message.future = (lambda: None), operation.future

    def _exchange(self, direction: int, part: Sequence[tuple[bool, int, _Message]]) -> None:
        """Runs a batch: it ends when everything is received, here and by the others."""
        for sends, peer, message in part:
            if sends:
                self.hub.deliver(self.rank, peer, TAGS[direction], message.buffer)
        reply = torch.zeros(1)
        for sends, peer, message in part:
            if not sends:
                super().receive(peer, TAGS[direction], message.buffer).wait()
                self.hub.deliver(self.rank, peer, REPLIES[direction], reply)
        for sends, peer, _ in part:
            if sends:
                super().receive(peer, REPLIES[direction], reply).wait()

    # -- collectives

    def all_reduce(
        self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = ""
    ) -> Pending:
        assert ranks in self.prepared
        call = super().all_reduce
        return self.run(_Operation(), lambda: call(ranks, tag, buffer, what).wait())

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        call = super().broadcast
        return self.run(_Operation(), lambda: call(source, buffer).wait())

    def barrier(self) -> None:
        self.run(_Operation(), super().barrier).wait()


class _OrderedShards:
    """All-gathers and reduce-scatters, which run on the rank's stream."""

    def __init__(self, transport: OrderedTransport, unordered: ShardMessages) -> None:
        self.transport, self.unordered = transport, unordered

    def all_gather(
        self, ranks: tuple[int, ...], tag: int, shard: Tensor, full: Tensor, what: str = ""
    ) -> Pending:
        assert ranks in self.transport.prepared
        return self.transport.run(
            _Operation(), lambda: self.unordered.all_gather(ranks, tag, shard, full, what).wait()
        )

    def reduce_scatter(
        self, ranks: tuple[int, ...], tag: int, full: Tensor, shard: Tensor, what: str = ""
    ) -> Pending:
        assert ranks in self.transport.prepared
        return self.transport.run(
            _Operation(),
            lambda: self.unordered.reduce_scatter(ranks, tag, full, shard, what).wait(),
        )
