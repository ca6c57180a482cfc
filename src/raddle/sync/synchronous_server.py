"""A synchronous parameter server: it sums one gradient of each worker, in rank order, and makes one update.

An item is a slice of a parameter: some of its rows. A push is a worker's gradient of an item, a pull the
updated rows that the server sends back. A pull is sent without a copy, although the wire reads the rows
later. This is safe: the next update needs a push of every worker, and a worker pushes again only after its
last pull has arrived. A script that changes parameters by hand calls `synchronize` before, which waits
until all queued rows are sent. Updates change this rank's parameters in place, because no forward uses
them between `submit` and `wait`. A clock is the number of a step. The *caller* is the code that uses
ServerSynchroniser.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

import torch
from torch import Tensor

from raddle.sync.item import Item
from raddle.sync.item_rows import ItemRows
from raddle.sync.parameter_server import MarkReturned, ParameterServer, RowUpdater, Send, ServerItem
from raddle.sync.rank_failure import RankFailure
from raddle.sync.server_stalls import StalledItem
from raddle.transport.wire import PULL, Frame


class StepSums:
    """Stores the sums of a step with a barrier (no update before all sums) until the caller has used them.

    All methods except `sums` are called with the server's lock held.
    """

    def __init__(self, failure: RankFailure) -> None:
        self._sums: dict[int, tuple[int, Tensor]] = {}  # item -> (clock, sum)
        self._complete = failure.register(threading.Event())  # set when all items are summed

    def add(self, entry: ServerItem, clock: int, total: Tensor, item_count: int) -> None:
        """Adds an item's sum. item_count: the number of items of the server."""
        self._sums[entry.item.number] = clock, total
        entry.waiting_since = None  # completion_event may have set it during the sum
        if len(self._sums) == item_count:
            self._complete.set()

    def completion_event(self, items: Collection[ServerItem]) -> threading.Event:
        """Returns an event that is set when all items are summed.

        From now on, an item of which no gradient has arrived counts as waiting, too.
        """
        now = time.perf_counter()
        for entry in items:
            if entry.item.number not in self._sums and entry.waiting_since is None:
                entry.waiting_since = now
        if len(self._sums) == len(items):
            self._complete.set()
        return self._complete

    def sums(self) -> dict[int, Tensor]:
        """Returns item -> the sum of its gradients."""
        return {number: total for number, (_, total) in self._sums.items()}

    def take_clocks(self) -> dict[int, int]:
        """Returns the clock of each item, and clears the sums for the next step."""
        sums, self._sums = self._sums, {}
        self._complete.clear()
        return {number: clock for number, (clock, _) in sums.items()}


class SynchronousServer(ParameterServer):
    """The items that this rank serves without staleness.

    step_sums: keeps sums for the caller, who makes the updates; None: the server makes them.
    admitted: the highest clock whose updates may be made now; `admit` raises it, and later sums wait. None:
        no limit. It is for servers that are not workers: gradients may arrive there before the learning
        rate of their step is known.
    """

    def __init__(
        self, rank: int, updater: RowUpdater, send: Send, mark_returned: MarkReturned, *,
        step_sums: StepSums | None, admitted: int | None,
    ) -> None:  # fmt: skip
        super().__init__(rank, updater, send, mark_returned)
        self.step_sums = step_sums
        self._admitted = admitted
        self._unadmitted: list[tuple[ServerItem, int, Tensor]] = []  # item, clock, sum
        self._lock = threading.Lock()  # held for short times: protects the collected gradients

    def bind(self, item: Item, rows: ItemRows, master: ItemRows | None) -> None:
        self.items[item.number] = ServerItem(item, rows, rows if master is None else master)

    def push(self, worker: int, number: int, clock: int, gradient: Tensor) -> None:
        entry = self.items[number]
        with self._lock:
            gradients = self._collect(entry, worker, clock, gradient)
        if gradients is None:
            return
        with torch.no_grad():
            total = self._sum(entry, gradients)
        with self._lock:
            if self.step_sums is not None:
                self.step_sums.add(entry, clock, total, len(self.items))
                return
            if self._admitted is not None and clock > self._admitted:
                self._unadmitted.append((entry, clock, total))
                return
        self._finish(entry, clock, total)

    def is_updated_to(self, clock: int) -> bool:
        return all(entry.version >= clock for entry in self.items.values())

    def admit(self, clock: int) -> None:
        """Allows updates up to a clock, and makes those that were waiting for it."""
        with self._lock:
            if self._admitted is None:
                return
            self._admitted = max(clock, self._admitted)
            # waiting: (item, clock, sum), as in _unadmitted
            due = [waiting for waiting in self._unadmitted if waiting[1] <= self._admitted]
            self._unadmitted = [
                waiting for waiting in self._unadmitted if waiting[1] > self._admitted
            ]
        for entry, due_clock, total in sorted(due, key=lambda waiting: waiting[0].item.priority):
            self._finish(entry, due_clock, total)

    def completion_event(self) -> threading.Event:
        """Returns an event that is set when all items are summed; see StepSums.completion_event."""
        assert self.step_sums is not None
        with self._lock:
            return self.step_sums.completion_event(self.items.values())

    def publish(self) -> None:
        """Sends the rows to the workers, after the caller has updated them."""
        assert self.step_sums is not None
        with self._lock:
            clocks = self.step_sums.take_clocks()
        with torch.no_grad():
            for number in sorted(clocks, key=lambda n: self.items[n].item.priority):
                with self.updater.lock:
                    # -1 in place of a worker: the update is from the sum over all workers.
                    self.updater.log_update(self.items[number], -1, clocks[number])
                self._send_back(self.items[number], clocks[number])

    def stalled_items(self) -> list[StalledItem]:
        now, stalled = time.perf_counter(), []
        for entry in self.items.values():
            since, arrived = entry.waiting_since, tuple(entry.gradients)
            missing = tuple(w for w in entry.sorted_workers if w not in arrived)
            if since is not None and missing:
                stalled.append(StalledItem(entry.item.name, now - since, missing))
        return stalled

    def _collect(
        self, entry: ServerItem, worker: int, clock: int, gradient: Tensor
    ) -> dict[int, Tensor] | None:
        """Stores a gradient. Returns those of all workers if it was the last one. Needs the lock."""
        entry.check_clock(self.rank, worker, clock)
        if clock != entry.version + 1:
            raise ValueError(
                f"rank {self.rank} got '{entry.item.name}' with clock {clock} from rank {worker}, "
                f"before that of clock {entry.version + 1} was sent back: wait for it first"
            )
        entry.clocks[worker] = clock
        entry.gradients[worker] = gradient
        if len(entry.gradients) < len(entry.sorted_workers):
            if entry.waiting_since is None:
                entry.waiting_since = time.perf_counter()
            return None
        entry.waiting_since = None
        gradients, entry.gradients = entry.gradients, {}
        return gradients

    def _sum(self, entry: ServerItem, gradients: dict[int, Tensor]) -> Tensor:
        """Returns the sum of gradients, in place of the first one if that came over the wire.

        This rank's own gradient belongs to the caller (`borrowed`) and is only read.
        """
        record = self.updater.record
        begin = time.perf_counter() if record else 0.0
        first_worker, *other_workers = entry.sorted_workers
        borrowed = first_worker == self.rank
        total = gradients[first_worker].to(entry.master.device)
        for worker in other_workers:
            gradient = gradients[worker].to(entry.master.device)
            total = total + gradient if borrowed else total.add_(gradient)
            borrowed = False
        if borrowed and self.step_sums is not None:
            total = total.clone()  # the caller may scale what `sums` gives
        if record:
            record(entry.item.number, "sum", begin, time.perf_counter())
        return entry.master.shaped(total)

    def _finish(self, entry: ServerItem, clock: int, total: Tensor) -> None:
        """Updates an item with the sum of its gradients, and sends the rows to the workers."""
        with torch.no_grad():
            with self.updater.lock:
                self.updater.update(entry, -1, clock, total)
            self._send_back(entry, clock)

    def _send_back(self, entry: ServerItem, clock: int) -> None:
        """Sends updated rows to all workers; the worker on this rank is the last.

        So when that worker goes on, the rows for all others are in the queue already.
        """
        item = entry.item
        frame = Frame(PULL, item.number, clock, entry.version)
        payload = entry.master.flat().cpu()
        for worker in entry.sorted_workers:
            if worker != self.rank:
                self._send(worker, frame, payload, item.priority)
        if self.rank in entry.clocks:  # this rank is one of the workers
            self._mark_returned(item.number, clock)
