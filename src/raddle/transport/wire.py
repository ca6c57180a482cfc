"""The interface `Wire`, through which ranks send gradients and updated rows by priority, and its queues.

Parameter servers use it (sync/): workers push gradients of slices to servers and pull updated rows.

An item is a slice of a parameter (some of its rows) or a bundle of slices (sync/item.py). A frame is the
header of a message; the payload follows it. MemoryWire (between threads) and SocketWire (between processes)
implement `Wire`.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

PUSH = 1  # a worker's gradient, sent to the server of its item
PULL = 2  # updated rows, sent from the server to a worker
KIND_NAMES = {PUSH: "push", PULL: "pull"}
MAX_BYTES = 2**32  # the largest payload if `expect` was not called


class Frame(NamedTuple):
    """The header of a message."""

    kind: int  # PUSH or PULL
    item: int  # number of the item
    clock: int  # how many gradients of the item the worker has pushed: 1 with the first
    version: int = 0  # of a pull: how many updates the item has had

    def __str__(self) -> str:
        return f"{KIND_NAMES.get(self.kind, self.kind)} of item {self.item} at clock {self.clock}"


OnMessage = Callable[[int, Frame, Tensor], None]  # source rank, frame, payload (flat uint8)
OnFailure = Callable[[str], None]  # reason


@dataclass
class Counters:
    """Counts what has been sent so far."""

    messages: int = 0
    bytes: int = 0  # of payloads
    # How often a message overtook others: it was sent before one that was queued earlier for its peer.
    overtaken: int = 0
    busy: float = 0.0  # seconds spent in sending, summed over peers
    longest: int = 0  # the most messages that were in a queue

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.overtaken + other.overtaken,
            self.busy + other.busy,
            max(self.longest, other.longest),
        )


class Wire(Protocol):
    """One rank's end of the wire."""

    rank: int
    size: int
    sent: dict[int, int]  # payload bytes passed to `send`, by peer

    @property
    def counters(self) -> Counters: ...  # of all peers together

    def expect(self, limits: Mapping[int, int]) -> None:
        """Sets, before `start`, the largest payload of each item in bytes. Other items are refused."""

    def start(self, on_message: OnMessage, on_failure: OnFailure) -> None:
        """Starts to send and to receive.

        on_message: runs on a receiving thread; there is one for each peer, and they run at the same time.
        on_failure: called once, with a reason that names ranks, if a peer is lost or sends invalid data.
        """

    def send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        """Queues a contiguous CPU tensor, which is read later; never blocks.

        For each peer, the message with the smallest (priority, order of `send`) is sent first.
        """

    def close(self) -> None:
        """Sends all queued messages and then, between processes, an end mark; ends threads.

        The end mark tells the peers that this rank sends nothing more. More calls do nothing.
        """


class QueuedMessage(NamedTuple):
    """A message in a queue; compared by priority, then by sequence number."""

    priority: int
    sequence: int
    frame: Frame
    payload: Tensor


class Outbox:
    """The queue of messages to one peer, the most urgent first."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._heap: list[QueuedMessage] = []
        # Sequence numbers of the queued messages, the oldest first.
        self._sequences: OrderedDict[int, None] = OrderedDict()
        self._next_sequence = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, priority: int, frame: Frame, payload: Tensor) -> bool:
        """Queues a message. Returns False, without queueing it, if the outbox is closed."""
        with self._changed:
            if self._closed:
                return False
            heapq.heappush(self._heap, QueuedMessage(priority, self._next_sequence, frame, payload))
            self._sequences[self._next_sequence] = None
            self._next_sequence += 1
            self.counters.longest = max(self.counters.longest, len(self._heap))
            self._changed.notify()
            return True

    def take(self) -> QueuedMessage | None:
        """Waits for a message and returns the most urgent one; None once the outbox is closed and empty."""
        with self._changed:
            while not self._heap:
                if self._closed:
                    return None
                self._changed.wait()
            message = heapq.heappop(self._heap)
            if next(iter(self._sequences)) < message.sequence:
                self.counters.overtaken += 1
            del self._sequences[message.sequence]
            return message

    def count_sent(self, message: QueuedMessage, seconds: float) -> None:
        """Counts a message that was sent; sending it took `seconds`."""
        self.counters.messages += 1
        self.counters.bytes += message.payload.nbytes
        self.counters.busy += seconds

    def close(self, *, drop: bool = False) -> None:
        """Accepts no more messages. Those in the queue are still sent, or dropped if `drop`."""
        with self._changed:
            self._closed = True
            if drop:
                self._heap.clear()
                self._sequences.clear()
            self._changed.notify_all()


def refusal_reason(frame: Frame, nbytes: int, limits: Mapping[int, int] | None) -> str:
    """Returns what is wrong with a frame that has arrived; an empty text if nothing is.

    limits: the largest payload of each item in bytes; None: unknown.
    """
    if frame.kind not in KIND_NAMES:
        return f"it is of kind {frame.kind}"
    if limits is not None and frame.item not in limits:
        return f"there is no item {frame.item}"
    limit = MAX_BYTES if limits is None else limits[frame.item]
    if nbytes > limit:
        return f"item {frame.item} has at most {limit} bytes, not {nbytes}"
    return ""


def check_payload(rank: int, size: int, target: int, payload: Tensor) -> None:
    """Raises ValueError unless the target is another rank and the payload a contiguous CPU tensor."""
    if target == rank or not 0 <= target < size:
        raise ValueError(
            f"rank {rank} cannot send to rank {target}: choose another of {size} ranks"
        )
    if payload.device.type != "cpu" or not payload.is_contiguous():
        raise ValueError(
            f"rank {rank} cannot send a {payload.device.type} tensor of strides {payload.stride()}: "
            "hand over a contiguous one on the CPU"
        )


def name_ranks(ranks: Iterable[int]) -> str:
    """Returns "rank 3" or "ranks 1, 3"."""
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"
