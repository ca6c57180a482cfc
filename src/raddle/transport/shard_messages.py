"""All-gathers and reduce-scatters made of messages: every rank sends a shard to every other rank.

Threads use this, and processes with gloo, where messages are faster than gloo's own all-gather (1.4 times)
and reduce-scatter (2 times, for 16 MB among 4 ranks).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence

from torch import Tensor

from raddle.transport.base import Pending, PendingMessage

# post(target, tag, buffer, what) starts to send a message; expect(source, tag, like, elements, what)
# prepares to receive it (`Transport` in base.py).
Post = Callable[[int, int, Tensor, str], Pending]
Expect = Callable[[int, int, Tensor, int, str], PendingMessage]


class ShardMessages:
    """The all-gathers and reduce-scatters of one rank.

    post, expect: like those of Transport, but `post` does not count bytes; collective_bytes counts them.
    """

    def __init__(
        self, rank: int, post: Post, expect: Expect,
        collective_bytes: MutableMapping[tuple[str, tuple[int, ...]], int],
    ) -> None:  # fmt: skip
        self._rank, self._post, self._expect = rank, post, expect
        self._collective_bytes = collective_bytes

    def all_gather(
        self, ranks: tuple[int, ...], tag: int, shard: Tensor, full: Tensor, what: str = ""
    ) -> Pending:
        """Starts to gather the shards of all ranks into `full`."""
        self._collective_bytes["all_gather", ranks] += full.nbytes
        parts, (messages, peers) = (
            _parts(full, ranks),
            self._expect_from_others(ranks, tag, shard, what),
        )
        sends = [self._post(r, tag, shard, what) for r in peers]
        parts[self._rank].copy_(shard)
        return _PendingExchange(sends, messages, lambda r, received: parts[r].copy_(received))

    def reduce_scatter(
        self, ranks: tuple[int, ...], tag: int, full: Tensor, shard: Tensor, what: str = ""
    ) -> Pending:
        """Starts to sum all ranks' parts of `full` for this rank, in the order of ranks, into `shard`."""
        self._collective_bytes["reduce_scatter", ranks] += full.nbytes
        parts, (messages, peers) = (
            _parts(full, ranks),
            self._expect_from_others(ranks, tag, shard, what),
        )
        sends = [self._post(r, tag, parts[r], what) for r in peers]
        received: dict[int, Tensor] = {self._rank: parts[self._rank]}

        def add(source: int, message: Tensor) -> None:
            received[source] = message
            if len(received) == len(ranks):
                shard.copy_(received[ranks[0]])
                for r in ranks[1:]:
                    shard.add_(received[r])

        return _PendingExchange(sends, messages, add)

    def _expect_from_others(
        self, ranks: Sequence[int], tag: int, shard: Tensor, what: str
    ) -> tuple[dict[int, PendingMessage], list[int]]:
        """Expects a shard from every other rank; returns the messages by rank, and these ranks."""
        peers = [r for r in ranks if r != self._rank]
        return {r: self._expect(r, tag, shard, shard.numel(), what) for r in peers}, peers


def _parts(full: Tensor, ranks: Sequence[int]) -> dict[int, Tensor]:
    """Returns the part of a flat buffer that belongs to each rank."""
    assert full.is_contiguous()
    return dict(zip(ranks, full.view(len(ranks), -1), strict=True))


class _PendingExchange:
    """Messages in transit. take(source, message): called with each message that arrives."""

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
