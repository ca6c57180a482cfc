"""What carries gradients and updated rows between ranks, the most urgent first."""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

PUSH = 1  # a worker's gradient goes to the home
PULL = 2  # updated rows go from the home to a worker
KIND_NAMES = {PUSH: "push", PULL: "pull"}
MAX_BYTES = 2**32  # bytes of a frame where nobody has said what to expect


class Frame(NamedTuple):
    """What a message is about."""

    kind: int  # PUSH or PULL
    item: int  # its number
    clock: int  # of the worker that pushes; of the worker that a pull answers
    version: int = 0  # of a pull: how many updates the item has had

    def __str__(self) -> str:
        return f"{KIND_NAMES.get(self.kind, self.kind)} of item {self.item} at clock {self.clock}"


OnMessage = Callable[[int, Frame, Tensor], None]  # source, what it is, a flat uint8 tensor to keep
OnFailure = Callable[[str], None]


@dataclass
class Counters:
    """What has left so far."""

    messages: int = 0
    bytes: int = 0  # of payloads
    overtaken: int = 0  # messages that left before one that was queued earlier for the same peer
    busy: float = 0.0  # seconds in which a line took bytes, summed over peers
    longest: int = 0  # messages that a queue has held

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.overtaken + other.overtaken,
            self.busy + other.busy,
            max(self.longest, other.longest),
        )


class Wire(Protocol):
    """One rank's end."""

    rank: int
    size: int
    sent: dict[int, int]  # payload bytes handed to `send`, by peer

    @property
    def counters(self) -> Counters: ...

    def expect(self, limits: Mapping[int, int]) -> None:
        """Says, before `start`, how many bytes a frame of each item has at most: others are refused."""

    def start(self, on_message: OnMessage, on_failure: OnFailure) -> None:
        """Lets messages in and out.

        `arrive` runs on a receiving thread: one for each peer, different peers at the same time.
        `fail` is called once, with a reason that names ranks, where a peer is lost or talks nonsense.
        """

    def send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        """Queues a contiguous CPU tensor, which is read later; never blocks.

        For each peer the smallest (priority, order of arrival) leaves first.
        """

    def close(self) -> None:
        """Sends what is queued, says goodbye and ends threads; more calls do nothing."""


class QueuedMessage(NamedTuple):
    """A message that waits to leave; compared by priority, then by order."""

    priority: int
    sequence: int
    frame: Frame
    payload: Tensor


class Outbox:
    """What waits for one peer, the most urgent first."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._heap: list[QueuedMessage] = []
        self._sequences: OrderedDict[int, None] = OrderedDict()  # of what waits: the oldest first
        self._next_sequence = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, priority: int, frame: Frame, payload: Tensor) -> bool:
        """False, and nothing is queued, where the box is closed."""
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
        """Waits for the most urgent letter; None once the box is closed and empty."""
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
        """Counts a letter that has gone."""
        self.counters.messages += 1
        self.counters.bytes += message.payload.nbytes
        self.counters.busy += seconds

    def close(self, *, drop: bool = False) -> None:
        """Takes no more letters; what is queued still leaves, unless it is dropped."""
        with self._changed:
            self._closed = True
            if drop:
                self._heap.clear()
                self._sequences.clear()
            self._changed.notify_all()


def refusal_reason(frame: Frame, nbytes: int, limits: Mapping[int, int] | None) -> str:
    """What is wrong with a frame that has arrived; empty where nothing is."""
    if frame.kind not in KIND_NAMES:
        return f"it is of kind {frame.kind}"
    if limits is not None and frame.item not in limits:
        return f"there is no item {frame.item}"
    limit = MAX_BYTES if limits is None else limits[frame.item]
    if nbytes > limit:
        return f"item {frame.item} has at most {limit} bytes, not {nbytes}"
    return ""


def check_payload(rank: int, size: int, target: int, payload: Tensor) -> None:
    """Raises for what cannot be sent."""
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
    """rank 3, or ranks 1, 3"""
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"
