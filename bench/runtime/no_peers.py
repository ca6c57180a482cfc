"""A transport of one rank whose peers do not exist: it runs a rank's part of a large job alone.

Messages arrive at once and hold zeros, sums and gathers give what this rank has itself. So the numbers mean
nothing, but the rank computes, packs and launches what it would in the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.transport.base import DONE, BufferedMessage, GroupsMade, Pending, PendingMessage


class NoFailure:
    """No rank fails, as there is only one."""

    first_failure = None


class NoPeers:
    """The transport of rank 0 of `size` ranks; it implements raddle.transport.base.Transport."""

    def __init__(self, size: int) -> None:
        self.rank, self.size, self.early_receives, self.timeout = 0, size, False, 60.0
        self.sent: dict[int, int] = defaultdict(int)
        self.collective_bytes: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
        self.failures, self.shards = NoFailure(), self

    def prepare(self, groups: Sequence[Any], directions: Sequence[int] = ()) -> GroupsMade:
        return GroupsMade()

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        return DONE

    send = post

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> PendingMessage:
        return BufferedMessage(DONE, lambda: like.new_zeros(elements))

    def receive(self, source: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        return DONE

    def all_reduce(
        self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = ""
    ) -> Pending:
        return DONE

    def all_gather(
        self, ranks: tuple[int, ...], tag: int, shard: Tensor, full: Tensor, what: str = ""
    ) -> Pending:
        full.view(len(ranks), -1).copy_(shard)  # every part becomes this rank's
        return DONE

    def reduce_scatter(
        self, ranks: tuple[int, ...], tag: int, full: Tensor, shard: Tensor, what: str = ""
    ) -> Pending:
        shard.copy_(full.view(len(ranks), -1)[ranks.index(self.rank)])
        return DONE

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        return DONE

    def total_sent(self) -> dict[int, int]:
        return {}

    def wire(self) -> Any:
        raise NotImplementedError("a rank without peers has no wire: use sync allreduce or sharded")

    def on_failure(self, stop: Callable[[str], None]) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def flush(self) -> None:
        pass

    def barrier(self) -> None:
        pass

    def check(self) -> None:
        pass

    def close(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
