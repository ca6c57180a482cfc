"""The server's side of synchronising: what homes of both kinds have in common.

A home that sums (`home_sums.py`) updates once for the gradients of all workers; a home with staleness
(`home_stale.py`) updates with each gradient as it comes.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from raddle.sync.item import Item, UpdateEvent
from raddle.sync.server_stalls import StalledItem
from raddle.transport.wire import Frame

Apply = Callable[[int, int, Tensor], None]  # item, clock, gradient (read only): updates the rows
RecordItemSpan = Callable[
    [int, str, float, float], None
]  # item, what, start, end (time.perf_counter)
Send = Callable[[int, Frame, Tensor, int], None]
MarkReturned = Callable[[int, int], None]  # item, clock: one of the rank's own has been updated
MIN_LOGGED = 100_000  # events at least that are kept: a log does not fill the memory


class ServerItem:
    """One item at its home."""

    __slots__ = (
        "clocks",
        "flat",
        "item",
        "master",
        "sorted_workers",
        "pending_pulls",
        "gradients",
        "rows",
        "waiting_since",
        "version",
    )

    def __init__(self, item: Item, rows: Tensor, master: Tensor) -> None:
        self.item, self.rows, self.master = item, rows, master
        self.flat = master.view(-1)
        self.sorted_workers = tuple(
            sorted(item.workers)
        )  # of the sum: the same bits whoever comes first
        self.clocks = dict.fromkeys(self.sorted_workers, 0)
        self.gradients: dict[int, Tensor] = {}  # of the clock that is being summed
        self.pending_pulls: list[tuple[float, int, int]] = []  # since when, worker, clock: pulls
        self.waiting_since: float | None = None  # when the first part came
        self.version = 0

    def check_clock(self, rank: int, worker: int, clock: int) -> None:
        """Raises for a gradient that is not the worker's next one; `rank` is the home's."""
        last = self.clocks[worker]
        if clock != last + 1:
            raise ValueError(
                f"rank {rank} got '{self.item.name}' with clock {clock} from rank {worker}, "
                f"whose last had clock {last}: each is handed in once a step, in order"
            )


class RowUpdater:
    """Applies gradients to rows, one at a time: an optimizer's state is not made for two threads."""

    def __init__(self, rank: int, apply: Apply, record: RecordItemSpan | None) -> None:
        self.log: list[UpdateEvent] = []
        self.lock = threading.Lock()  # to be held by whoever updates
        self.record = record
        self._rank, self._apply = rank, apply

    def update(self, entry: ServerItem, worker: int, clock: int, gradient: Tensor) -> None:
        """By one worker's gradient, or by the sum over all (-1)."""
        number, begin = entry.item.number, time.perf_counter() if self.record else 0.0
        gradient = gradient.to(entry.master.device).view_as(entry.master)
        try:
            self._apply(number, clock, gradient)
        except Exception as error:
            raise RuntimeError(
                f"rank {self._rank} could not update '{entry.item.name}' at clock {clock}: {error!r}"
            ) from error
        wait_for_stream(entry.master)
        self.log_update(entry, worker, clock)
        if self.record:
            self.record(number, "update", begin, time.perf_counter())

    def log_update(self, entry: ServerItem, worker: int, clock: int) -> None:
        """Notes an update."""
        entry.version += 1
        self.log.append(UpdateEvent(entry.item.number, worker, clock, entry.version))
        if len(self.log) > 2 * MIN_LOGGED:
            del self.log[:MIN_LOGGED]


class ParameterServer(ABC):
    """The items whose home this rank is."""

    def __init__(
        self, rank: int, updater: RowUpdater, send: Send, mark_returned: MarkReturned
    ) -> None:
        self.rank, self.updater = rank, updater
        self.items: dict[int, ServerItem] = {}
        self._send, self._mark_returned = send, mark_returned

    @abstractmethod
    def bind(self, item: Item, rows: Tensor, master: Tensor | None) -> None:
        """Says where an item's rows are; `master`: what is updated, if it is something else."""

    @abstractmethod
    def push(self, worker: int, number: int, clock: int, gradient: Tensor) -> None:
        """Takes a worker's gradient, flat."""

    def admit(self, clock: int) -> None:  # noqa: B027, most updates wait for nothing
        """Lets updates up to a clock happen."""

    @abstractmethod
    def is_updated_to(self, clock: int) -> bool:
        """Whether all items have had all their updates up to a clock."""

    @abstractmethod
    def stalled_items(self) -> list[StalledItem]:
        """What cannot be answered yet. No lock: a snapshot that is a moment old is as good."""


def wait_for_stream(rows: Tensor) -> None:
    """What was queued for rows on a GPU by this thread is done: others use streams of their own."""
    if rows.device.type == "cuda":
        torch.cuda.current_stream(rows.device).synchronize()
