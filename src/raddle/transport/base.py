"""What the executor asks of a transport, and the sentences with which transports fail.

Bytes are counted from the tensors handed over, never from the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from raddle.transport.wire import Wire

LAST_TAG = 2**31 - 2  # the tag after it is the transports' own


class Pending(Protocol):
    """A transfer under way."""

    def wait(self) -> None:
        """Returns when the buffer may be read (receive, sum, broadcast) or reused (send).

        Once done, it returns at once. It raises where a rank has failed or the time is up.
        """


class Done:
    """What has left already."""

    def wait(self) -> None:
        pass


DONE = Done()


class PendingMessage(Protocol):
    """A message on its way here."""

    def wait(self) -> Tensor:
        """The message, once it is there."""


class BufferedMessage:
    """Waits for a message, and then says where it is."""

    __slots__ = ("_get_message", "_pending")

    def __init__(self, pending: Pending, get_message: Callable[[], Tensor]) -> None:
        self._pending, self._get_message = pending, get_message

    def wait(self) -> Tensor:
        self._pending.wait()
        return self._get_message()


class WidenedSum:
    """A sum in a narrower type, put back where it came from."""

    def __init__(self, pending: Pending, narrow: Tensor, wide: Tensor) -> None:
        self._pending, self._narrow, self._wide = pending, narrow, wide

    def wait(self) -> None:
        self._pending.wait()
        self._wide.copy_(self._narrow)


class FailureStatus(Protocol):
    """Whether a rank has failed."""

    @property
    def first_failure(self) -> tuple[int, str] | None:
        """The rank that failed first, and why; None: all is well."""


class Transport(Protocol):
    """One rank's end. Buffers are contiguous, the executor's own, and left alone until `wait`.

    A link's messages of one tag arrive in the order in which they were sent.
    """

    rank: int
    size: int
    early_receives: bool  # whether a receive may be posted long before its send: tags match them
    sent: dict[int, int]  # bytes handed to `send`, by target
    reduced: dict[tuple[int, ...], int]  # bytes handed to `all_reduce`, by group
    timeout: float  # seconds that anything is waited for

    @property
    def failures(self) -> FailureStatus:
        """What is known of ranks that have failed."""

    def wire(self) -> Wire:
        """What carries slices of parameters, urgent ones first; one, made by all ranks together."""

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """Calls `stop` with this rank's sentence when a rank has failed, or has already; on any thread."""

    def total_sent(self) -> dict[int, int]:
        """Bytes handed to `send`, and to the wire, by target."""

    def prepare(
        self,
        groups: Sequence[tuple[int, ...]],
        links: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Makes the groups that sum, and the (source, target) links; None: all links.

        Called by all ranks with the same lists, once for each program.
        The group of all ranks is there already.
        """

    def send(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        """Starts to send; 0 <= tag <= LAST_TAG; `what` is for error messages."""

    def receive(self, source: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        """Posts a receive of as many elements of the same type as are sent."""

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        """Starts to send by the fastest way that there is; the other side expects it."""

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> PendingMessage:
        """Makes ready for what is posted; the transport gives it memory: `like` has its type and place."""

    def all_reduce(
        self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = ""
    ) -> Pending:
        """Starts to sum in place. All ranks of a group issue its sums in the same order."""

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        """Starts to copy the source's buffer to all ranks; not counted in `sent`.

        All ranks issue their broadcasts and barriers in the same order.
        """

    def barrier(self) -> None:
        """Returns when all ranks are here."""

    def check(self) -> None:
        """Raises if a rank has failed: to be asked before a step's results are believed."""

    def fail(self, reason: str) -> None:
        """Tells all others that this rank has failed; only the first failure is told."""

    def close(self) -> None:
        """Ends connections and threads; more calls do nothing."""


class WaitLabel(NamedTuple):
    """What a rank waits for; put into words only where it fails."""

    verb: str  # "send to", "receive from", "sum over", "broadcast from", "barrier of"
    peer: int | tuple[int, ...]
    tag: int | None = None
    what: str = ""

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
    """Why a rank stops: for another's failure, or for its own, which one of its threads has told."""
    why = f"rank {failed} failed: {reason}"
    return RuntimeError(why if rank == failed else f"rank {rank} stops: {why}")


def timeout_error(rank: int, seconds: float, label: WaitLabel) -> TimeoutError:
    return TimeoutError(
        f"rank {rank} has waited {seconds:.1f} s to {label}: see what the other side does, "
        "or set a longer time-out"
    )


def total_sent(transport: Transport, wire: Wire | None) -> dict[int, int]:
    total = dict(transport.sent)
    for target, nbytes in (wire.sent if wire is not None else {}).items():
        total[target] = total.get(target, 0) + nbytes
    return total
