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
from raddle.sync.parameter_server import Back, Home, Homed, Send, Updates
from raddle.sync.rank_failure import Failure
from raddle.sync.server_stalls import Waiting
from raddle.transport.wire import PULL, Frame


class Barrier:
    """The sums of a step, kept until the caller has updated all rows by them. Under the home's lock."""

    def __init__(self, failure: Failure) -> None:
        self._sums: dict[int, tuple[int, Tensor]] = {}  # by item: clock and sum
        self._all = failure.wakes(threading.Event())  # all items are summed

    def keep(self, homed: Homed, clock: int, total: Tensor, items: int) -> None:
        self._sums[homed.item.number] = clock, total
        homed.since = None  # `expect` may have looked while the sum was made
        if len(self._sums) == items:
            self._all.set()

    def expect(self, items: Collection[Homed]) -> threading.Event:
        """Whoever has not begun is missing from now on; what is set when all items are summed."""
        now = time.perf_counter()
        for homed in items:
            if homed.item.number not in self._sums and homed.since is None:
                homed.since = now
        if len(self._sums) == len(items):
            self._all.set()
        return self._all

    def sums(self) -> dict[int, Tensor]:
        return {number: total for number, (_, total) in self._sums.items()}

    def take(self) -> dict[int, int]:
        """By item its clock; the next step begins."""
        sums, self._sums = self._sums, {}
        self._all.clear()
        return {number: clock for number, (clock, _) in sums.items()}


class SummingHome(Home):
    """`barrier`: sums are kept for the caller. `admitted`: see the synchroniser."""

    def __init__(
        self, rank: int, updates: Updates, send: Send, back: Back, *,
        barrier: Barrier | None, admitted: int | None,
    ) -> None:  # fmt: skip
        super().__init__(rank, updates, send, back)
        self.barrier = barrier
        self._admitted = admitted
        self._parked: list[tuple[Homed, int, Tensor]] = []  # sums of clocks not admitted yet
        self._lock = threading.Lock()  # short: who has pushed what

    def bind(self, item: Item, rows: Tensor, master: Tensor | None) -> None:
        self.items[item.number] = Homed(item, rows, rows if master is None else master)

    def push(self, worker: int, number: int, clock: int, part: Tensor) -> None:
        homed = self.items[number]
        with self._lock:
            parts = self._collect(homed, worker, clock, part)
        if parts is None:
            return
        with torch.no_grad():
            total = self._sum(homed, parts)
        with self._lock:
            if self.barrier is not None:
                self.barrier.keep(homed, clock, total, len(self.items))
                return
            if self._admitted is not None and clock > self._admitted:
                self._parked.append((homed, clock, total))
                return
        self._finish(homed, clock, total)

    def served(self, clock: int) -> bool:
        return all(homed.version >= clock for homed in self.items.values())

    def admit(self, clock: int) -> None:
        """Lets updates up to a clock happen, and does those that have waited for it."""
        with self._lock:
            if self._admitted is None:
                return
            self._admitted = max(clock, self._admitted)
            due = [p for p in self._parked if p[1] <= self._admitted]
            self._parked = [p for p in self._parked if p[1] > self._admitted]
        for homed, at, total in sorted(due, key=lambda p: p[0].item.priority):
            self._finish(homed, at, total)

    def summed(self) -> threading.Event:
        """Set when all items are summed. From now on a worker that has not begun is missing too."""
        assert self.barrier is not None
        with self._lock:
            return self.barrier.expect(self.items.values())

    def publish(self) -> None:
        """Sends back the rows that the caller has updated by the sums."""
        assert self.barrier is not None
        with self._lock:
            kept = self.barrier.take()
        with torch.no_grad():
            for number in sorted(kept, key=lambda n: self.items[n].item.priority):
                with self.updates.lock:
                    self.updates.count(self.items[number], -1, kept[number])
                self._return(self.items[number], kept[number])

    def waiting(self) -> list[Waiting]:
        now, found = time.perf_counter(), []
        for homed in self.items.values():
            since, there = homed.since, tuple(homed.parts)
            missing = tuple(w for w in homed.order if w not in there)
            if since is not None and missing:
                found.append(Waiting(homed.item.name, now - since, missing))
        return found

    def _collect(
        self, homed: Homed, worker: int, clock: int, part: Tensor
    ) -> dict[int, Tensor] | None:
        """The parts of all workers, where this was the last. Under the lock."""
        homed.check_clock(self.rank, worker, clock)
        if clock != homed.version + 1:
            raise ValueError(
                f"rank {self.rank} got '{homed.item.name}' with clock {clock} from rank {worker}, "
                f"before that of clock {homed.version + 1} was sent back: wait for it first"
            )
        homed.clocks[worker] = clock
        homed.parts[worker] = part
        if len(homed.parts) < len(homed.order):
            if homed.since is None:
                homed.since = time.perf_counter()
            return None
        homed.since = None
        parts, homed.parts = homed.parts, {}
        return parts

    def _sum(self, homed: Homed, parts: dict[int, Tensor]) -> Tensor:
        """In place where a part came from the wire; a worker's own gradient is only read."""
        record = self.updates.record
        begin = time.perf_counter() if record else 0.0
        first, *others = homed.order
        own = first == self.rank
        total = parts[first].to(homed.master.device)
        for worker in others:
            part = parts[worker].to(homed.master.device)
            total = total + part if own else total.add_(part)
            own = False
        if own and self.barrier is not None:
            total = total.clone()  # the caller may scale what `sums` gives
        if record:
            record(homed.item.number, "sum", begin, time.perf_counter())
        return total.view_as(homed.master)

    def _finish(self, homed: Homed, clock: int, total: Tensor) -> None:
        with torch.no_grad():
            with self.updates.lock:
                self.updates.update(homed, -1, clock, total)
            self._return(homed, clock)

    def _return(self, homed: Homed, clock: int) -> None:
        """To all. The own one last: whoever has it may count on the others being queued."""
        item = homed.item
        frame = Frame(PULL, item.number, clock, homed.version)
        payload = homed.flat if homed.flat.device.type == "cpu" else homed.flat.cpu()
        for worker in homed.order if item.returned else ():
            if worker != self.rank:
                self._send(worker, frame, payload, item.priority)
        if self.rank in homed.clocks:
            self._back(item.number, clock)
