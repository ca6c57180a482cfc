"""A synchronous home: one gradient of each worker, summed in the order of ranks, is one update.

What is sent. A payload is read by the wire at some later time. Rows go out as they are, without a copy: the
next update needs a push of every worker, a worker pushes again only when its last pull has arrived, and
what has arrived has been sent. The one who could still change rows that wait in a queue is the user of the
parameter at home; whoever does so by hand calls `synchronize` before, which waits until all that was handed
to the wire has left. Updates happen in the bound rows, as nobody uses them between `ready` and `wait`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

import torch
from torch import Tensor

from raddle.sync.item import Item
from raddle.sync.parameter_server import MarkReturned, ParameterServer, RowUpdater, Send, ServerItem
from raddle.sync.rank_failure import RankFailure
from raddle.sync.server_stalls import StalledItem
from raddle.transport.wire import PULL, Frame


class StepSums:
    """The sums of a step, kept until the caller has updated all rows by them. Under the home's lock."""

    def __init__(self, failure: RankFailure) -> None:
        self._sums: dict[int, tuple[int, Tensor]] = {}  # by item: clock and sum
        self._complete = failure.register(threading.Event())  # all items are summed

    def add(self, entry: ServerItem, clock: int, total: Tensor, item_count: int) -> None:
        self._sums[entry.item.number] = clock, total
        entry.waiting_since = None  # `expect` may have looked while the sum was made
        if len(self._sums) == item_count:
            self._complete.set()

    def completion_event(self, items: Collection[ServerItem]) -> threading.Event:
        """Whoever has not begun is missing from now on; what is set when all items are summed."""
        now = time.perf_counter()
        for entry in items:
            if entry.item.number not in self._sums and entry.waiting_since is None:
                entry.waiting_since = now
        if len(self._sums) == len(items):
            self._complete.set()
        return self._complete

    def sums(self) -> dict[int, Tensor]:
        return {number: total for number, (_, total) in self._sums.items()}

    def take_clocks(self) -> dict[int, int]:
        """By item its clock; the next step begins."""
        sums, self._sums = self._sums, {}
        self._complete.clear()
        return {number: clock for number, (clock, _) in sums.items()}


class SynchronousServer(ParameterServer):
    """`barrier`: sums are kept for the caller. `admitted`: see the synchroniser."""

    def __init__(
        self, rank: int, updater: RowUpdater, send: Send, mark_returned: MarkReturned, *,
        step_sums: StepSums | None, admitted: int | None,
    ) -> None:  # fmt: skip
        super().__init__(rank, updater, send, mark_returned)
        self.step_sums = step_sums
        self._admitted = admitted
        self._unadmitted: list[
            tuple[ServerItem, int, Tensor]
        ] = []  # sums of clocks not admitted yet
        self._lock = threading.Lock()  # short: who has pushed what

    def bind(self, item: Item, rows: Tensor, master: Tensor | None) -> None:
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
        """Lets updates up to a clock happen, and does those that have waited for it."""
        with self._lock:
            if self._admitted is None:
                return
            self._admitted = max(clock, self._admitted)
            due = [p for p in self._unadmitted if p[1] <= self._admitted]
            self._unadmitted = [p for p in self._unadmitted if p[1] > self._admitted]
        for entry, due_clock, total in sorted(due, key=lambda p: p[0].item.priority):
            self._finish(entry, due_clock, total)

    def completion_event(self) -> threading.Event:
        """Set when all items are summed. From now on a worker that has not begun is missing too."""
        assert self.step_sums is not None
        with self._lock:
            return self.step_sums.completion_event(self.items.values())

    def publish(self) -> None:
        """Sends back the rows that the caller has updated by the sums."""
        assert self.step_sums is not None
        with self._lock:
            clocks = self.step_sums.take_clocks()
        with torch.no_grad():
            for number in sorted(clocks, key=lambda n: self.items[n].item.priority):
                with self.updater.lock:
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
        """The parts of all workers, where this was the last. Under the lock."""
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
        """In place where a part came from the wire; a worker's own gradient is only read."""
        record = self.updater.record
        begin = time.perf_counter() if record else 0.0
        first, *others = entry.sorted_workers
        borrowed = first == self.rank
        total = gradients[first].to(entry.master.device)
        for worker in others:
            gradient = gradients[worker].to(entry.master.device)
            total = total + gradient if borrowed else total.add_(gradient)
            borrowed = False
        if borrowed and self.step_sums is not None:
            total = total.clone()  # the caller may scale what `sums` gives
        if record:
            record(entry.item.number, "sum", begin, time.perf_counter())
        return total.view_as(entry.master)

    def _finish(self, entry: ServerItem, clock: int, total: Tensor) -> None:
        with torch.no_grad():
            with self.updater.lock:
                self.updater.update(entry, -1, clock, total)
            self._send_back(entry, clock)

    def _send_back(self, entry: ServerItem, clock: int) -> None:
        """To all. The own one last: whoever has it may count on the others being queued."""
        item = entry.item
        frame = Frame(PULL, item.number, clock, entry.version)
        payload = entry.flat if entry.flat.device.type == "cpu" else entry.flat.cpu()
        for worker in entry.sorted_workers if item.returned else ():
            if worker != self.rank:
                self._send(worker, frame, payload, item.priority)
        if self.rank in entry.clocks:
            self._mark_returned(item.number, clock)
