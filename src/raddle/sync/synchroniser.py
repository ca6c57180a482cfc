"""Copies of rows agree: workers hand gradients in, homes update, and updated rows come back.

On every rank:

    ready(i, gradient)      a worker's gradient goes to the item's home
    ...                     the home sums, updates and sends back, on the threads that receive
    wait(i)                 the rows are up to date: the next forward may use them

There is no barrier between steps: each item is waited for where it is used, and the most urgent
travels first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raddle.sync.failure import Failure
from raddle.sync.home import Apply, Home, Record
from raddle.sync.item import Event, Item, check_items, check_rows, names, read_payload
from raddle.sync.stalls import Watcher, logger, sentence, tick, unanswered
from raddle.transport.wire import PULL, PUSH, Frame, Wire

POLL = 0.0002  # seconds between two looks at what has left


class Held:
    """One item at a worker."""

    __slots__ = ("flat", "handed", "here", "item")

    def __init__(self, item: Item, rows: Tensor | None, here: threading.Event) -> None:
        self.item, self.here = item, here
        self.flat = None if rows is None else rows.view(-1)
        self.handed = 0  # clock
        here.set()  # whether what was handed in has come back


class Synchroniser:
    """One rank's part. `bind` all items, `start`, then `ready` and `wait` in every step.

    `apply(number, clock, gradient)` updates `rows_at_home(number)`; it only reads the gradient. It runs
    on whichever thread brings the last gradient, never on two at once. `staleness`: 0 is synchronous, s
    lets a worker be s steps ahead of the slowest, None any number. `admitted`: the clock up to which
    updates may happen, raised by `admit`; None: no such limit. It is for homes that are no workers
    themselves, where an update may come before the settings of its step are known.
    """

    def __init__(
        self,
        items: Sequence[Item],
        wire: Wire,
        apply: Apply,
        *,
        staleness: int | None = 0,
        barrier: bool = False,
        timeout: float = 300.0,
        stall: float = 10.0,
        admitted: int | None = None,
        fail: Callable[[str], None] | None = None,
        record: Record | None = None,
    ) -> None:
        check_items(items, wire.size)
        if (barrier or admitted is not None) and staleness != 0:
            raise ValueError(
                f"staleness is {staleness}, and a barrier or `admitted` needs all gradients of a step: "
                "leave one of them out"
            )
        self.rank = wire.rank
        self._items, self._wire, self._record = items, wire, record
        self._barrier, self._timeout, self._stall = barrier, timeout, stall
        self._failure = Failure(fail)
        self._home = Home(
            self.rank, apply, self._send, self._back, self._failure,
            staleness=staleness, barrier=barrier, admitted=admitted, record=record,
        )  # fmt: skip
        self._held: dict[int, Held] = {}
        self._sent = 0  # messages handed to the wire
        self._left = wire.counters.messages  # of the wire before it was ours
        # The home knows who is missing: others wait a little longer, so that it speaks first.
        self._patience = timeout + 4 * tick(stall, timeout)
        self._lock = threading.Lock()
        self._watcher: Watcher | None = None
        self._started = self._closed = False

    @property
    def log(self) -> list[Event]:
        """Updates at this home, in their order; of a long run the latest 100 000 or more."""
        return self._home.log

    def bind(self, number: int, rows: Tensor | None, master: Tensor | None = None) -> None:
        """Says where an item's rows are on this rank, worker or home: a contiguous view from p.detach().

        A worker has none (None) of an item that is not returned.
        `master`: with staleness, what the home updates, if it has a copy of its own already.
        """
        item = self._items[number]
        if self.rank != item.home and self.rank not in item.workers:
            raise ValueError(
                f"rank {self.rank} binds '{item.name}', whose workers are {item.workers} and whose "
                f"home is {item.home}: bind what is of this rank"
            )
        if rows is None and (item.returned or self.rank == item.home):
            raise ValueError(f"rank {self.rank} binds no rows of '{item.name}': it needs them here")
        if rows is not None:
            check_rows(self.rank, item, rows, "rows")
        if rows is not None and rows.requires_grad:
            raise ValueError(
                f"rank {self.rank} binds rows of '{item.name}' that need a gradient: take them from "
                "p.detach()"
            )
        if self._started or number in self._held or number in self._home.items:
            raise ValueError(
                f"rank {self.rank} binds '{item.name}' again: bind once, before `start`"
            )
        if self.rank in item.workers:
            here = self._failure.wakes(threading.Event())
            self._held[number] = Held(item, rows, here)
        if rows is not None and self.rank == item.home:
            self._home.bind(item, rows, master)

    def rows_at_home(self, number: int) -> Tensor:
        """What `apply` updates: the bound rows, or, with staleness, the home's own copy of them."""
        return self._home.items[number].master

    def start(self) -> None:
        """Lets messages in, once all items are bound: what arrives needs rows. `ready` does it too."""
        if self._started:
            return
        own = [i for i in self._items if self.rank == i.home or self.rank in i.workers]
        bound = self._held.keys() | self._home.items.keys()
        missing = [item for item in own if item.number not in bound]
        if missing:
            raise ValueError(f"rank {self.rank} starts without rows of {names(missing)}: bind them")
        self._started = True
        self._wire.expect({item.number: item.nbytes for item in own})
        if self._home.items:
            self._watcher = Watcher(
                self.rank, self._home.waiting, self._failure,
                stall=self._stall, timeout=self._timeout,
            )  # fmt: skip
        self._wire.start(self._arrive, self._lost)

    def ready(self, number: int, gradient: Tensor) -> None:
        """Hands in this rank's share of the sum; it is only read, until the item has come back."""
        self.start()
        held = self._held.get(number)
        if held is None:
            raise ValueError(
                f"rank {self.rank} hands in '{self._items[number].name}', whose workers are "
                f"{self._items[number].workers}: hand in what is of this rank"
            )
        item = held.item
        check_rows(self.rank, item, gradient, "a gradient")
        if self._closed:
            raise RuntimeError(f"rank {self.rank} hands in '{item.name}' after it was closed")
        self.wait(number)
        begin = time.perf_counter()
        gradient = gradient.detach().view(-1)
        if item.returned or item.home == self.rank:
            held.here.clear()
        held.handed += 1
        try:
            if item.home == self.rank:
                stream = torch.cuda.current_stream(gradient.device) if gradient.is_cuda else None
                ready = stream.record_event() if stream else None
                self._home.push(self.rank, number, held.handed, gradient, ready)
            else:
                payload = gradient if gradient.device.type == "cpu" else gradient.cpu()
                self._send(item.home, Frame(PUSH, number, held.handed), payload, item.priority)
                if self._record:
                    self._record(number, "push", begin, time.perf_counter())
        except Exception as error:
            self._failure.happen(str(error), type_of(error), cause=error)
            self._failure.check()

    def wait(self, number: int) -> None:
        """Returns when what this rank last handed in has come back; at once if nothing is under way."""
        self._failure.check()
        held = self._held.get(number)
        if held is None or held.here.is_set():
            self._failure.check()  # a failure sets it as well
            return
        begin = time.perf_counter()
        self._wait_long(held, begin)
        if self._record:
            self._record(number, "wait", begin, time.perf_counter())

    def synchronize(self) -> None:
        """All items are back, and all that this rank had to send has left."""
        for number in self._held:
            self.wait(number)
        begin = time.perf_counter()
        while (queued := self._sent - (self._wire.counters.messages - self._left)) > 0:
            self._failure.check()
            if time.perf_counter() - begin > self._timeout:
                self._failure.happen(
                    f"rank {self.rank} has waited {self._timeout:.1f} s for {queued} messages to "
                    "leave: see what the other ranks do, or set a longer time-out",
                    TimeoutError,
                )
            time.sleep(POLL)
        self._failure.check()

    def finish(self) -> None:
        """A step ends: homes go on by themselves."""

    def admit(self, clock: int) -> None:
        """Raises the clock up to which updates may happen."""
        try:
            self._home.admit(clock)
        except Exception as error:
            self._failure.happen(str(error), type_of(error), cause=error)
        self._failure.check()

    def sums(self) -> dict[int, Tensor]:
        """With a barrier: the sums of all items whose home is here, which the caller may change."""
        self._need_barrier("sums")
        self.start()
        self._failure.check()
        if not self._home.summed().wait(self._patience):
            self._failure.happen(self._late(self.rank, "all items", self._patience), TimeoutError)
        self._failure.check()
        return self._home.sums()

    def publish(self) -> None:
        """With a barrier: sends back the rows that the caller has updated after `sums`."""
        self._need_barrier("publish")
        self._failure.check()
        if not self._home.complete():
            raise RuntimeError(
                f"rank {self.rank} publishes before all is summed: call sums() first"
            )
        self._home.publish()

    @property
    def failed(self) -> bool:
        return bool(self._failure.reason)

    def idle(self) -> bool:
        """Whether all that this rank has handed in is back."""
        return all(held.here.is_set() for held in self._held.values())

    def served(self, clock: int) -> bool:
        """Whether every item whose home is here has had all its updates up to a clock."""
        return self._home.served(clock)

    def stop(self, reason: str) -> None:
        """A rank has failed: every wait here raises the reason. `fail` is not called: they know."""
        self._failure.happen(reason, tell=False)

    def close(self) -> None:
        """Sends what is queued and ends; more calls do nothing.

        A home that closes answers nobody: `synchronize` on all ranks, then a barrier of theirs, come first.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._watcher is not None:
            self._watcher.close()
        self._wire.close()
        out = [held.item for held in self._held.values() if not held.here.is_set()]
        if out:
            self._failure.happen(
                f"rank {self.rank} was closed before rank {out[0].home} had sent back {names(out)}: "
                "synchronize first",
                tell=False,
            )

    def _wait_long(self, held: Held, begin: float) -> None:
        here, home, name = held.here, held.item.home, held.item.name
        brief = min(self._stall, self._patience)
        if not here.wait(brief):
            if home != self.rank or not self._home.waiting():  # else the watcher says it
                logger.warning("%s", self._late(home, name, time.perf_counter() - begin))
            if not here.wait(self._patience - brief):
                late = self._late(home, name, time.perf_counter() - begin)
                self._failure.happen(late, TimeoutError)
        self._failure.check()

    def _late(self, home: int, name: str, seconds: float) -> str:
        overdue = self._home.waiting() if home == self.rank else []
        if overdue:
            return sentence(self.rank, overdue)
        return unanswered(self.rank, home, name, seconds)

    def _send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        with self._lock:
            self._sent += 1
        self._wire.send(target, frame, payload, priority)

    def _back(self, number: int, clock: int) -> None:
        held = self._held[number]
        if clock != held.handed or held.here.is_set():
            raise ValueError(
                f"rank {self.rank} got back '{held.item.name}' with clock {clock} and has handed in "
                f"clock {held.handed}: each comes back once, in order"
            )
        held.here.set()

    def _arrive(self, source: int, frame: Frame, payload: Tensor) -> None:
        """On a thread of the wire, which is not to see exceptions: they are raised by `wait`."""
        if self._closed or self._failure.reason:
            return
        try:
            item = self._items[frame.item]
            values = read_payload(self.rank, source, item, payload)
            if frame.kind == PUSH:
                if item.home != self.rank or source not in item.workers:
                    raise ValueError(
                        f"rank {self.rank} got a gradient of '{item.name}' from rank {source}: its "
                        f"workers are {item.workers} and its home is {item.home}"
                    )
                self._home.push(source, frame.item, frame.clock, values)
            elif frame.kind == PULL:
                self._take(source, item, frame.clock, values)
        except Exception as error:
            self._failure.happen(str(error), type_of(error), cause=error)

    def _take(self, source: int, item: Item, clock: int, values: Tensor) -> None:
        held = self._held.get(item.number)
        if held is None or held.flat is None or source != item.home:
            raise ValueError(
                f"rank {self.rank} got rows of '{item.name}' from rank {source}: its workers are "
                f"{item.workers} and its home is {item.home}"
            )
        begin = time.perf_counter()
        if clock == held.handed and not held.here.is_set():
            with torch.no_grad():
                held.flat.copy_(values)
        self._back(item.number, clock)
        if self._record:
            self._record(item.number, "pull", begin, time.perf_counter())

    def _lost(self, reason: str) -> None:
        if not self._closed:
            self._failure.happen(reason)

    def _need_barrier(self, name: str) -> None:
        if not self._barrier:
            raise RuntimeError(f"{name}() is for barrier=True: homes update as gradients arrive")


def type_of(error: Exception) -> type[Exception]:
    """The kind that a wait raises: what is not known to take one sentence becomes a RuntimeError."""
    return type(error) if type(error) in (ValueError, TimeoutError) else RuntimeError
