"""The worker's side of a ServerSynchroniser: records which gradients this rank has submitted and waits for.

A ServerSynchroniser synchronises parameters through servers (server_synchroniser.py). An item is a slice of
a parameter: some of its rows. A worker pushes (sends) its gradient of an item to the item's server, and the
server sends the updated rows back. A clock counts the gradients that a worker has submitted of an item: 1
in the first step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raddle.sync.item import Item
from raddle.sync.item_rows import ItemRows
from raddle.sync.parameter_server import RecordItemSpan
from raddle.sync.rank_failure import RankFailure
from raddle.sync.server_stalls import StalledItem, describe_stall, describe_unanswered, logger


class WorkerItem:
    """The state of one item at a worker."""

    __slots__ = ("clock", "item", "rows", "up_to_date")

    def __init__(self, item: Item, rows: ItemRows, up_to_date: threading.Event) -> None:
        self.item, self.rows, self.up_to_date = item, rows, up_to_date
        self.clock = 0  # gradients submitted so far
        up_to_date.set()  # cleared while a gradient is at the server


class Worker:
    """The items of which this rank submits gradients.

    failure: the first failure on this rank, which all its waits raise (rank_failure.py).
    stalled_items: lists the items for which the server on this rank lacks gradients.
    A wait logs a warning after `stall` seconds and fails after `fail_after` seconds.
    record: adds a bar to the Chrome trace; None: there is no trace.
    """

    def __init__(
        self, rank: int, failure: RankFailure, stalled_items: Callable[[], Sequence[StalledItem]], *,
        stall: float, fail_after: float, record: RecordItemSpan | None,
    ) -> None:  # fmt: skip
        self.items: dict[int, WorkerItem] = {}
        self.fail_after, self.record = fail_after, record
        self._rank, self._failure, self._stalled_items = rank, failure, stalled_items
        self._warn_after = min(stall, fail_after)

    def bind(self, item: Item, rows: ItemRows) -> None:
        """Adds an item. rows: its rows on this rank."""
        up_to_date = self._failure.register(threading.Event())
        self.items[item.number] = WorkerItem(item, rows, up_to_date)

    def begin_push(self, number: int) -> int:
        """Marks an item as submitted, and returns the clock to send with its gradient."""
        entry = self.items[number]
        entry.up_to_date.clear()
        entry.clock += 1
        return entry.clock

    def wait(self, number: int) -> None:
        """Waits until the rows of the last submitted gradient are back from the server."""
        self._failure.check()
        entry = self.items.get(number)
        if entry is None or entry.up_to_date.is_set():
            self._failure.check()  # a failure sets `up_to_date` as well
            return
        begin, server, name = time.perf_counter(), entry.item.server, entry.item.name
        if not entry.up_to_date.wait(self._warn_after):
            # If the server on this rank lacks gradients, StallWatcher (server_stalls.py) warns.
            if server != self._rank or not self._stalled_items():
                logger.warning("%s", self.describe_wait(server, name, time.perf_counter() - begin))
            if not entry.up_to_date.wait(self.fail_after - self._warn_after):
                message = self.describe_wait(server, name, time.perf_counter() - begin)
                self._failure.set_reason(message, TimeoutError)
        self._failure.check()
        if self.record:
            self.record(number, "wait", begin, time.perf_counter())

    def describe_wait(self, server: int, name: str, seconds: float) -> str:
        """Returns a sentence that says who waits for whom. name: the item that `server` has not sent back.

        The server's own rank knows which gradients are missing. Other ranks know only the server.
        """
        stalled = self._stalled_items() if server == self._rank else []
        if stalled:
            return describe_stall(self._rank, stalled)
        return describe_unanswered(self._rank, server, name, seconds)

    def receive(self, source: int, item: Item, clock: int, values: Tensor) -> None:
        """Takes updated rows that rank `source` has sent."""
        entry = self.items.get(item.number)
        if entry is None or source != item.server:
            raise ValueError(
                f"rank {self._rank} got rows of '{item.name}' from rank {source}: its workers are "
                f"{item.workers} and its server is {item.server}"
            )
        begin = time.perf_counter()
        if (
            clock == entry.clock and not entry.up_to_date.is_set()
        ):  # if not, mark_returned below raises
            with torch.no_grad():
                entry.rows.write(values)
        self.mark_returned(item.number, clock)
        if self.record:
            self.record(item.number, "pull", begin, time.perf_counter())

    def mark_returned(self, number: int, clock: int) -> None:
        """Marks an item's rows as up to date with the gradient of `clock`."""
        entry = self.items[number]
        if clock != entry.clock or entry.up_to_date.is_set():
            raise ValueError(
                f"rank {self._rank} got back '{entry.item.name}' with clock {clock} and has submitted "
                f"clock {entry.clock}: each comes back once, in order"
            )
        entry.up_to_date.set()

    def outstanding(self) -> list[Item]:
        """Returns the items whose updated rows are not back yet."""
        return [entry.item for entry in self.items.values() if not entry.up_to_date.is_set()]
