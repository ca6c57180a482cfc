"""All-gathers and reduce-scatters made of messages: every rank sends a shard to every other rank.

Threads use this, and processes with gloo, where messages are faster than gloo's own all-gather (1.4 times)
and reduce-scatter (2 times, for 16 MB among 4 ranks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from raddle.transport.base import Pending, PendingMessage

# post(target, tag, buffer, what) starts to send; expect(source, tag, like, elements, what) prepares for it.
Post = Callable[[int, int, Tensor, str], Pending]
Expect = Callable[[int, int, Tensor, int, str], PendingMessage]


def all_gather_by_messages(
    post: Post, expect: Expect, rank: int, ranks: Sequence[int], tag: int, shard: Tensor,
    full: Tensor, what: str,
) -> Pending:  # fmt: skip
    """Starts to gather the shards of all ranks into `full`."""
    parts = _parts(full, ranks)
    others = [r for r in ranks if r != rank]
    messages = {r: expect(r, tag, shard, shard.numel(), what) for r in others}
    sends = [post(r, tag, shard, what) for r in others]
    parts[rank].copy_(shard)
    return _PendingExchange(sends, messages, lambda r, received: parts[r].copy_(received))


def reduce_scatter_by_messages(
    post: Post, expect: Expect, rank: int, ranks: Sequence[int], tag: int, full: Tensor,
    shard: Tensor, what: str,
) -> Pending:  # fmt: skip
    """Starts to sum the parts of `full` that belong to this rank; they are added in the order of ranks."""
    parts = _parts(full, ranks)
    others = [r for r in ranks if r != rank]
    messages = {r: expect(r, tag, shard, shard.numel(), what) for r in others}
    sends = [post(r, tag, parts[r], what) for r in others]
    received: dict[int, Tensor] = {rank: parts[rank]}

    def add(source: int, message: Tensor) -> None:
        received[source] = message
        if len(received) == len(ranks):
            shard.copy_(received[ranks[0]])
            for r in ranks[1:]:
                shard.add_(received[r])

    return _PendingExchange(sends, messages, add)


def _parts(full: Tensor, ranks: Sequence[int]) -> dict[int, Tensor]:
    """By rank, its part of a flat buffer."""
    assert full.is_contiguous()
    return dict(zip(ranks, full.view(len(ranks), -1), strict=True))


class _PendingExchange:
    """Messages in transit. take: what to do with a message, by its source."""

    def __init__(
        self, sends: Sequence[Pending], messages: dict[int, PendingMessage],
        take: Callable[[int, Tensor], object],
    ) -> None:  # fmt: skip
        self._sends, self._messages = sends, messages
        self._take: Callable[[int, Tensor], object] | None = take

    def wait(self) -> None:
        if self._take is None:
            return
        for source, message in self._messages.items():
            self._take(source, message.wait())
        for send in self._sends:
            send.wait()
        self._sends, self._messages, self._take = (), {}, None  # frees the buffers
