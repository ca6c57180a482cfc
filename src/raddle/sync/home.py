"""The server's side of synchronising: gradients of an item's workers become an update of its rows.

Synchronous: one gradient of each worker, summed in the order of ranks, is one update. With a bound on
staleness, or none (SSP, Ho et al., NIPS 2013), each gradient is an update of its own, and a worker's
pull at clock c is answered when the slowest worker's clock is at least c - s.

What is sent. A payload is read by the wire at some later time. Synchronous rows go out as they are,
without a copy: the next update needs a push of every worker, a worker pushes again only when its
last pull has arrived, and what has arrived has been sent. The one who could still change rows that wait in
a queue is the user of the parameter at home; whoever does so by hand calls `synchronize` before,
which waits until all that was handed to the wire has left. With staleness updates come at any time,
so a pull carries a copy.

Where updates happen. Synchronous: in the bound rows, as nobody uses them between `ready` and `wait`.
With staleness others' updates come while the home's own worker computes, so they go to a copy (the
master), from which the bound rows are copied when the home's own pull is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from raddle.sync.failure import Failure
from raddle.sync.item import Event, Item
from raddle.sync.stalls import Waiting
from raddle.transport.wire import PULL, Frame

Apply = Callable[[int, int, Tensor], None]  # item, clock, gradient (read only): updates the rows
Record = Callable[[int, str, float, float], None]  # item, what, start, end (time.perf_counter)
Send = Callable[[int, Frame, Tensor, int], None]
Ready = torch.cuda.Event | None
LOGGED = 100_000  # events at least that are kept: a log does not fill the memory


class Homed:
    """One item at its home."""

    __slots__ = (
        "clocks",
        "flat",
        "item",
        "master",
        "order",
        "owed",
        "parts",
        "rows",
        "since",
        "version",
    )

    def __init__(self, item: Item, rows: Tensor, master: Tensor) -> None:
        self.item, self.rows, self.master = item, rows, master
        self.flat = master.view(-1)
        self.order = tuple(sorted(item.workers))  # of the sum: the same bits whoever comes first
        self.clocks = dict.fromkeys(self.order, 0)
        self.parts: dict[int, Tensor] = {}  # of the clock that is being summed
        self.owed: list[tuple[float, int, int]] = []  # since when, worker, clock: pulls
        self.since: float | None = None  # when the first part came
        self.version = 0


class Home:
    """The items whose home this rank is. `back` marks one of the rank's own as returned."""

    def __init__(
        self,
        rank: int,
        apply: Apply,
        send: Send,
        back: Callable[[int, int], None],
        failure: Failure,
        *,
        staleness: int | None,
        barrier: bool,
        admitted: int | None,
        record: Record | None,
    ) -> None:
        self.rank = rank
        self.log: list[Event] = []
        self.items: dict[int, Homed] = {}
        self._apply, self._send, self._back = apply, send, back
        self._staleness, self._barrier, self._record = staleness, barrier, record
        self._admitted = admitted
        self._parked: list[tuple[Homed, int, Tensor]] = []  # sums of clocks not admitted yet
        self._sums: dict[int, tuple[int, Tensor]] = {}  # of a barrier: clock and sum
        self._all = failure.wakes(threading.Event())  # of a barrier: all items are summed
        self._lock = threading.Lock()  # short: who has pushed what
        self._applying = threading.Lock()  # an optimizer's state is not made for two threads

    def bind(self, item: Item, rows: Tensor, master: Tensor | None) -> None:
        copied = self._staleness != 0 and self.rank in item.workers
        if master is None:
            master = rows.clone() if copied else rows
        self.items[item.number] = Homed(item, rows, master)

    def push(self, worker: int, number: int, clock: int, part: Tensor, ready: Ready = None) -> None:
        """Takes a worker's gradient, flat; `ready`: when it may be read on another stream."""
        homed = self.items[number]
        if ready is not None:
            torch.cuda.current_stream(part.device).wait_event(ready)
        if self._staleness == 0:
            self._collect(homed, worker, clock, part)
        else:
            with self._applying, torch.no_grad():
                self._check_clock(homed, worker, clock)
                self._update(homed, worker, clock, part)
                homed.clocks[worker] = clock
                homed.owed.append((time.perf_counter(), worker, clock))
                self._answer(homed)

    def served(self, clock: int) -> bool:
        each = [1 if self._staleness == 0 else len(h.order) for h in self.items.values()]
        return all(h.version >= clock * n for h, n in zip(self.items.values(), each, strict=True))

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
        now = time.perf_counter()
        with self._lock:
            for number, homed in self.items.items():
                if number not in self._sums and homed.since is None:
                    homed.since = now
            if len(self._sums) == len(self.items):
                self._all.set()
        return self._all

    def sums(self) -> dict[int, Tensor]:
        return {number: total for number, (_, total) in self._sums.items()}

    def publish(self) -> None:
        with self._lock:
            sums, self._sums = self._sums, {}
            self._all.clear()
        with torch.no_grad():
            for number in sorted(sums, key=lambda n: self.items[n].item.priority):
                with self._applying:
                    self._count(self.items[number], -1, sums[number][0])
                self._return(self.items[number], sums[number][0])

    def complete(self) -> bool:
        return len(self._sums) == len(self.items)

    def waiting(self) -> list[Waiting]:
        """What cannot be answered yet. No lock: a snapshot that is a moment old is as good."""
        now, found = time.perf_counter(), []
        for homed in self.items.values():
            since = homed.since
            missing: tuple[int, ...] = ()
            if since is not None:
                there = tuple(homed.parts)
                missing = tuple(w for w in homed.order if w not in there)
            elif self._staleness and homed.owed:
                since, _, clock = min(tuple(homed.owed), default=(now, 0, 0))
                clocks = dict(homed.clocks)
                missing = tuple(w for w in homed.order if clocks[w] < clock - self._staleness)
            if since is not None and missing:
                found.append(Waiting(homed.item.name, now - since, missing))
        return found

    def _check_clock(self, homed: Homed, worker: int, clock: int) -> None:
        last = homed.clocks[worker]
        if clock != last + 1:
            raise ValueError(
                f"rank {self.rank} got '{homed.item.name}' with clock {clock} from rank {worker}, "
                f"whose last had clock {last}: each is handed in once a step, in order"
            )

    def _collect(self, homed: Homed, worker: int, clock: int, part: Tensor) -> None:
        with self._lock:
            self._check_clock(homed, worker, clock)
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
                return
            homed.since = None
            parts, homed.parts = homed.parts, {}
        with torch.no_grad():
            total = self._sum(homed, parts)
        with self._lock:
            if self._barrier:
                self._sums[homed.item.number] = clock, total
                homed.since = None  # `summed` may have looked while the sum was made
                if len(self._sums) == len(self.items):
                    self._all.set()
                return
            if self._admitted is not None and clock > self._admitted:
                self._parked.append((homed, clock, total))
                return
        self._finish(homed, clock, total)

    def _sum(self, homed: Homed, parts: dict[int, Tensor]) -> Tensor:
        """In place where a part came from the wire; a worker's own gradient is only read."""
        begin = time.perf_counter() if self._record else 0.0
        first, *others = homed.order
        own = first == self.rank
        total = parts[first].to(homed.master.device)
        for worker in others:
            part = parts[worker].to(homed.master.device)
            total = total + part if own else total.add_(part)
            own = False
        if own and self._barrier:
            total = total.clone()  # the caller may scale what `sums` gives
        if self._record:
            self._record(homed.item.number, "sum", begin, time.perf_counter())
        return total.view_as(homed.master)

    def _finish(self, homed: Homed, clock: int, total: Tensor) -> None:
        with torch.no_grad():
            with self._applying:
                self._update(homed, -1, clock, total)
            self._return(homed, clock)

    def _update(self, homed: Homed, worker: int, clock: int, gradient: Tensor) -> None:
        """Under the lock `_applying`."""
        number, begin = homed.item.number, time.perf_counter() if self._record else 0.0
        gradient = gradient.to(homed.master.device).view_as(homed.master)
        try:
            self._apply(number, clock, gradient)
        except Exception as error:
            raise RuntimeError(
                f"rank {self.rank} could not update '{homed.item.name}' at clock {clock}: {error!r}"
            ) from error
        settle(homed.master)
        self._count(homed, worker, clock)
        if self._record:
            self._record(number, "update", begin, time.perf_counter())

    def _count(self, homed: Homed, worker: int, clock: int) -> None:
        homed.version += 1
        self.log.append(Event(homed.item.number, worker, clock, homed.version))
        if len(self.log) > 2 * LOGGED:
            del self.log[:LOGGED]

    def _return(self, homed: Homed, clock: int) -> None:
        """Synchronous: to all. The own one last: whoever has it may count on the others being queued."""
        item = homed.item
        frame = Frame(PULL, item.number, clock, homed.version)
        payload = homed.flat if homed.flat.device.type == "cpu" else homed.flat.cpu()
        for worker in homed.order if item.returned else ():
            if worker != self.rank:
                self._send(worker, frame, payload, item.priority)
        if self.rank in homed.clocks:
            self._back(item.number, clock)

    def _answer(self, homed: Homed) -> None:
        """With staleness: those whose pull is due. Under the lock `_applying`."""
        bound = self._staleness
        slowest = min(homed.clocks.values())
        due = [o for o in homed.owed if bound is None or slowest >= o[2] - bound]
        if not due:
            return
        homed.owed = [o for o in homed.owed if o not in due]
        payload: Tensor | None = None
        own = 0
        for _, worker, clock in due:
            if worker == self.rank:
                own = clock
                continue
            if payload is None:
                payload = homed.flat.to("cpu", copy=True)
            frame = Frame(PULL, homed.item.number, clock, homed.version)
            self._send(worker, frame, payload, homed.item.priority)
        if own:
            homed.rows.copy_(homed.master)
            settle(homed.rows)
            self._back(homed.item.number, own)


def settle(rows: Tensor) -> None:
    """What was queued for rows on a GPU by this thread is done: others use streams of their own."""
    if rows.device.type == "cuda":
        torch.cuda.current_stream(rows.device).synchronize()
