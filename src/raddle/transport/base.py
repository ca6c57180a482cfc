"""The interface `Transport`, through which ranks send, receive and sum tensors, and its error messages.

ThreadTransport (ranks are threads) and ProcessTransport (ranks are processes) implement it. The counters
of bytes count the tensors that were really passed to a transport, not what a program predicts. A *link* is
a pair of ranks (source, target) here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from raddle.transport.wire import Wire

UP, DOWN = 1, -1  # directions of messages: to a higher rank, to a lower rank
# The largest tag that a caller may use; the transports use LAST_TAG + 1 themselves.
LAST_TAG = 2**31 - 2


class Pending(Protocol):
    """A transfer, sum or broadcast that has started."""

    def wait(self) -> None:
        """Returns when the buffer may be read (receive, sum, broadcast) or reused (send).

        A second call returns at once. `wait` raises if a rank has failed or the time-out is over.
        """


class Done:
    """A transfer that is complete already: `wait` returns at once."""

    def wait(self) -> None:
        pass


DONE = Done()


class PendingMessage(Protocol):
    """A message that this rank expects."""

    def wait(self) -> Tensor:
        """Waits for the message and returns it."""


class BufferedMessage:
    """A message that is received into a buffer. After the receive, `get_message` returns it."""

    __slots__ = ("_get_message", "_pending")

    def __init__(self, pending: Pending, get_message: Callable[[], Tensor]) -> None:
        self._pending, self._get_message = pending, get_message

    def wait(self) -> Tensor:
        self._pending.wait()
        return self._get_message()


class WidenedSum:
    """A sum in a narrower dtype, such as bf16; `wait` copies the result into the original tensor."""

    def __init__(self, pending: Pending, narrow: Tensor, wide: Tensor) -> None:
        self._pending, self._narrow, self._wide = pending, narrow, wide

    def wait(self) -> None:
        self._pending.wait()
        self._wide.copy_(self._narrow)


@dataclass(frozen=True)
class GroupsMade:
    """The process groups that one rank is in, and what it took to make them."""

    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0  # how much more memory is used: of the GPU or, on a CPU, of the process


class FailureStatus(Protocol):
    """Tells whether a rank has failed, and which was the first."""

    @property
    def first_failure(self) -> tuple[int, str] | None:
        """The rank that failed first, and the reason; None: no rank has failed."""


class ShardTransfers(Protocol):
    """All-gathers and reduce-scatters of one rank.

    The parts of a full buffer have the same size, and lie in it in the order of `ranks`. All ranks of a
    group must start its collectives in the same order. tag: equal on all ranks, and different from the tags
    of messages between them. what: describes the collective in errors.
    """

    def all_gather(
        self, ranks: tuple[int, ...], tag: int, shard: Tensor, full: Tensor, what: str = ""
    ) -> Pending:
        """Starts to gather the shards of all ranks into `full`."""

    def reduce_scatter(
        self, ranks: tuple[int, ...], tag: int, full: Tensor, shard: Tensor, what: str = ""
    ) -> Pending:
        """Starts to sum `full` over the ranks; `shard` receives this rank's part of the sum."""


class Prepared(Protocol):
    """The part of a transport that makes process groups, and starts messages together."""

    def prepare(
        self, groups: Sequence[tuple[int, ...]], directions: Sequence[int] = (UP, DOWN)
    ) -> GroupsMade:
        """Makes the process groups that do not exist yet: for collectives, and for messages up and down.

        All ranks call it with the same lists, once for each program. The group of all ranks exists already.
        Returns all groups that this rank is in so far.
        """

    def flush(self) -> None:
        """Starts the messages that were posted or expected since the last call, with NCCL as one batch.

        All ranks call it after the same messages. Other transports start every message at once.
        """


class Transport(Prepared, Protocol):
    """One rank's access to the other ranks.

    Buffers are contiguous. The caller does not change a buffer before `wait` returns. Messages from one
    rank to another with the same tag arrive in the order in which they were sent. `send` and `receive` are
    one pair of functions for messages, `post` and `expect` are the other: the latter may use shared memory.
    """

    rank: int
    size: int
    # Whether a receive may be posted long before its send, because tags match them. False with NCCL, which
    # has no tags: there, both ranks must issue their messages in the same order.
    early_receives: bool
    sent: dict[int, int]  # bytes passed to `send` and `post`, by target rank
    # Bytes of the full buffers of collectives, by kind and ranks of the group. Kinds are "all_reduce",
    # "all_gather" and "reduce_scatter".
    collective_bytes: dict[tuple[str, tuple[int, ...]], int]
    shards: ShardTransfers  # all-gathers and reduce-scatters
    timeout: float  # seconds after which a wait fails (with NCCL: see failures.py)

    @property
    def failures(self) -> FailureStatus:
        """Tells which rank has failed, if one has."""

    def wire(self) -> Wire:
        """Returns the wire, which sends slices of parameters by priority (wire.py).

        The first call makes it; all ranks make this call at the same time.
        """

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """Calls `stop(message)`, on any thread, when a rank fails; now if a rank has failed already."""

    def total_sent(self) -> dict[int, int]:
        """Returns the bytes passed to `send`, `post` and the wire, by target rank."""

    def send(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        """Starts to send; 0 <= tag <= LAST_TAG. what: describes the message in errors."""

    def receive(self, source: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        """Starts to receive. The buffer has the size and dtype of the message that is sent."""

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        """Starts to send by the fastest way, perhaps shared memory. The target calls `expect` for it."""

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> PendingMessage:
        """Prepares for a message that is sent with `post`. The transport allocates its memory.

        like: a tensor with the dtype and device of the message.
        """

    def all_reduce(
        self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = ""
    ) -> Pending:
        """Starts to sum in place. All ranks of a group must start its sums in the same order.

        tag: the same on all ranks; only for checks and error messages.
        """

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        """Starts to copy the source's buffer to all ranks; not counted in `sent`.

        All ranks start their broadcasts and barriers in the same order.
        """

    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    def check(self) -> None:
        """Raises if a rank has failed. Call it before a step's results are used."""

    def fail(self, reason: str) -> None:
        """Reports to all other ranks that this one has failed. Only the first failure is reported."""

    def close(self) -> None:
        """Closes connections and ends threads; more calls do nothing."""


class WaitLabel(NamedTuple):
    """Describes what a rank waits for, as in "receive halo (tag 5) from rank 1".

    The text is made only for an error message.
    """

    # "send to", "receive from", "sum over", "gather over", "scatter the sum over", "broadcast from",
    # "barrier of" or "gather from"
    verb: str
    peer: int | tuple[int, ...]  # the other rank, or all ranks of the collective
    tag: int | None = None
    what: str = ""  # describes the message, as "halo" above

    def __str__(self) -> str:
        verb, _, preposition = self.verb.partition(" ")
        what = f" {self.what}" if self.what else ""
        tag = f" (tag {self.tag})" if self.tag is not None else ""
        if isinstance(self.peer, int):
            peer = f"rank {self.peer}"
        else:
            peer = f"ranks {', '.join(map(str, self.peer))}"
        return f"{verb}{what}{tag} {preposition} {peer}"


def stop_error(rank: int, failed: int, reason: str) -> RuntimeError:
    """Returns the error that `rank` raises because rank `failed` (another one or itself) has failed."""
    why = f"rank {failed} failed: {reason}"
    return RuntimeError(why if rank == failed else f"rank {rank} stops: {why}")


def timeout_error(rank: int, seconds: float, label: WaitLabel) -> TimeoutError:
    """Returns the error that `rank` raises after it has waited `seconds` for what `label` describes."""
    return TimeoutError(
        f"rank {rank} has waited {seconds:.1f} s to {label}: see what the other side does, "
        "or set a longer time-out"
    )


def total_sent(transport: Transport, wire: Wire | None) -> dict[int, int]:
    """Returns the bytes sent by a transport and its wire, by target rank."""
    total = dict(transport.sent)
    for target, nbytes in (wire.sent if wire is not None else {}).items():
        total[target] = total.get(target, 0) + nbytes
    return total
