"""The base of both kinds of parameter servers: the server's side of a ServerSynchroniser.

A synchronous server (`synchronous_server.py`) makes one update from the gradients of all workers. A
server with staleness (`stale_server.py`) makes an update from each gradient as it arrives. Both run on
the ranks themselves: a rank is the server of some items (slices of parameters) and a worker of all items
that it has a copy of. A clock counts the gradients that a worker has submitted of an item: 1 in the first
step. A frame is the header of a message (transport/wire.py).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from raddle.sync.item import Item, UpdateEvent
from raddle.sync.item_rows import ItemRows
from raddle.sync.server_stalls import StalledItem
from raddle.transport.wire import Frame

# Item, clock, gradient (only read): updates rows. The gradient of a bundle is flat.
Apply = Callable[[int, int, Tensor], None]
# Records a bar of the Chrome trace: item, lane (row) of the trace, start, end (time.perf_counter).
RecordItemSpan = Callable[[int, str, float, float], None]
Send = Callable[[int, Frame, Tensor, int], None]  # target, frame, payload, priority
MarkReturned = Callable[[int, int], None]  # item, clock: the rows of this rank's worker are updated
MIN_LOGGED = 100_000  # the log keeps at least so many events; older ones are dropped to save memory


class ServerItem:
    """The state of one item at its server.

    rows: the item's rows of the parameters on this rank. master: the rows that the server updates; without
    staleness they are the same tensors.
    """

    __slots__ = (
        "clocks",
        "gradients",
        "item",
        "master",
        "pending_pulls",
        "rows",
        "sorted_workers",
        "version",
        "waiting_since",
    )

    def __init__(self, item: Item, rows: ItemRows, master: ItemRows) -> None:
        self.item, self.rows, self.master = item, rows, master
        # The order in which gradients are summed. It is fixed, so every run gives the same bits.
        self.sorted_workers = tuple(sorted(item.workers))
        self.clocks = dict.fromkeys(self.sorted_workers, 0)  # worker -> clock of its last gradient
        self.gradients: dict[int, Tensor] = {}  # worker -> its gradient, of the clock being summed
        self.pending_pulls: list[tuple[float, int, int]] = []  # time of the push, worker, clock
        self.waiting_since: float | None = None  # when the first gradient arrived
        self.version = 0  # updates so far

    def check_clock(self, rank: int, worker: int, clock: int) -> None:
        """Raises ValueError for a gradient that is not the worker's next one; `rank` is the server's."""
        last_clock = self.clocks[worker]
        if clock != last_clock + 1:
            raise ValueError(
                f"rank {rank} got '{self.item.name}' with clock {clock} from rank {worker}, "
                f"whose last had clock {last_clock}: each is submitted once a step, in order"
            )


class RowUpdater:
    """Applies gradients to rows, one at a time, because an optimizer is not safe for two threads."""

    def __init__(self, rank: int, apply: Apply, record: RecordItemSpan | None) -> None:
        self.log: list[UpdateEvent] = []
        self.lock = threading.Lock()  # the caller of `update` and `log_update` holds it
        self.record = record
        self._rank, self._apply = rank, apply

    def update(self, entry: ServerItem, worker: int, clock: int, gradient: Tensor) -> None:
        """Applies the gradient of one worker, or the sum over all workers (worker is -1)."""
        number, begin = entry.item.number, time.perf_counter() if self.record else 0.0
        gradient = entry.master.shaped(gradient.to(entry.master.device))
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
        """Counts an update and adds it to the log."""
        entry.version += 1
        self.log.append(UpdateEvent(entry.item.number, worker, clock, entry.version))
        if len(self.log) > 2 * MIN_LOGGED:
            del self.log[:MIN_LOGGED]


class ParameterServer(ABC):
    """The items that this rank serves: it collects their gradients and updates them."""

    def __init__(
        self, rank: int, updater: RowUpdater, send: Send, mark_returned: MarkReturned
    ) -> None:
        self.rank, self.updater = rank, updater
        self.items: dict[int, ServerItem] = {}
        self._send, self._mark_returned = send, mark_returned

    @abstractmethod
    def bind(self, item: Item, rows: ItemRows, master: ItemRows | None) -> None:
        """Adds an item. rows: its rows on this rank. master: the rows to update, if not `rows`."""

    @abstractmethod
    def push(self, worker: int, number: int, clock: int, gradient: Tensor) -> None:
        """Takes a worker's gradient, as a flat tensor."""

    def admit(self, clock: int) -> None:  # noqa: B027, most updates wait for nothing
        """Allows updates up to a clock. Until then, a server with such a limit keeps the sums.

        The limit (`admitted` of ServerSynchroniser) is for servers that are not workers: gradients may
        arrive there before the learning rate of their step is known.
        """

    @abstractmethod
    def is_updated_to(self, clock: int) -> bool:
        """Returns whether all items have had all their updates up to a clock."""

    @abstractmethod
    def stalled_items(self) -> list[StalledItem]:
        """Returns the items that wait for gradients. It takes no lock, so values may be slightly old."""


def wait_for_stream(rows: ItemRows) -> None:
    """Waits for the GPU work of this thread's stream, because other threads use other streams."""
    if rows.device.type == "cuda":
        torch.cuda.current_stream(rows.device).synchronize()
