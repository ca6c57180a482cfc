"""Copies of rows agree: workers hand gradients in, homes update, and updated rows come back.

On every rank:

    ready(i, gradient)      a worker's gradient goes to the item's home
    ...                     the home sums, updates and sends back, on the threads that receive
    wait(i)                 the rows are up to date: the next forward may use them

There is no barrier between steps: each item is waited for where it is used, and the most urgent
travels first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from raddle.sync.incoming_messages import Incoming
from raddle.sync.item import Item, UpdateEvent, check_items, check_rows, describe_items
from raddle.sync.outgoing_messages import Outgoing
from raddle.sync.parameter_server import Apply, ParameterServer, RecordItemSpan, RowUpdater
from raddle.sync.rank_failure import Failure
from raddle.sync.server_stalls import Watcher, tick
from raddle.sync.stale_server import StaleServer
from raddle.sync.synchronous_server import StepSums, SynchronousServer
from raddle.sync.worker import Worker
from raddle.transport.wire import PUSH, Frame, Wire


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
        record: RecordItemSpan | None = None,
    ) -> None:
        check_items(items, wire.size)
        if (barrier or admitted is not None) and staleness != 0:
            raise ValueError(
                f"staleness is {staleness}, and a barrier or `admitted` needs all gradients of a step: "
                "leave one of them out"
            )
        self.rank = wire.rank
        self._items, self._wire = items, wire
        self._failure = failure = Failure(fail)
        self._outgoing = Outgoing(wire, failure, timeout)
        # The home knows who is missing: others wait a little longer, so that it speaks first.
        patience = timeout + 4 * tick(stall, timeout)
        self._worker = Worker(
            self.rank, failure, lambda: self._home.stalled_items(),
            stall=stall, fail_after=patience, record=record,
        )  # fmt: skip
        ends = (
            self.rank,
            RowUpdater(self.rank, apply, record),
            self._outgoing.send,
            self._worker.mark_returned,
        )
        self._home: ParameterServer = (
            SynchronousServer(
                *ends, step_sums=StepSums(failure) if barrier else None, admitted=admitted
            )
            if staleness == 0
            else StaleServer(*ends, staleness)
        )
        self._incoming = Incoming(self.rank, items, self._home, self._worker, failure)
        self._watch = partial(
            Watcher, self.rank, self._home.stalled_items, failure, stall=stall, timeout=timeout
        )
        self._watcher: Watcher | None = None
        self._started = False

    @property
    def log(self) -> list[UpdateEvent]:
        """Updates at this home, in their order; of a long run the latest 100 000 or more."""
        return self._home.updater.log

    def bind(self, number: int, rows: Tensor | None, master: Tensor | None = None) -> None:
        """Says where an item's rows are on this rank, worker or home: a contiguous view from p.detach().

        A worker has none (None) of an item that is not returned.
        `master`: with staleness, what the home updates, if it has a copy of its own already.
        """
        item = self._items[number]
        check_bound(self.rank, item, rows)
        if self._started or number in self._worker.items or number in self._home.items:
            raise ValueError(
                f"rank {self.rank} binds '{item.name}' again: bind once, before `start`"
            )
        if self.rank in item.workers:
            self._worker.bind(item, rows)
        if rows is not None and self.rank == item.server:
            self._home.bind(item, rows, master)

    def rows_at_home(self, number: int) -> Tensor:
        """What `apply` updates: the bound rows, or, with staleness, the home's own copy of them."""
        return self._home.items[number].master

    def start(self) -> None:
        """Lets messages in, once all items are bound: what arrives needs rows. `ready` does it too."""
        if self._started:
            return
        own = [i for i in self._items if self.rank == i.server or self.rank in i.workers]
        bound = self._worker.items.keys() | self._home.items.keys()
        missing = [item for item in own if item.number not in bound]
        if missing:
            raise ValueError(
                f"rank {self.rank} starts without rows of {describe_items(missing)}: bind them"
            )
        self._started = True
        self._wire.expect({item.number: item.nbytes for item in own})
        if self._home.items:
            self._watcher = self._watch()
        self._wire.start(self._incoming, self._incoming.lost)

    def ready(self, number: int, gradient: Tensor) -> None:
        """Hands in this rank's share of the sum; it is only read, until the item has come back."""
        self.start()
        item = self._items[number]
        if number not in self._worker.items:
            raise ValueError(
                f"rank {self.rank} hands in '{item.name}', whose workers are {item.workers}: "
                "hand in what is of this rank"
            )
        check_rows(self.rank, item, gradient, "a gradient")
        if self._incoming.closed:
            raise RuntimeError(f"rank {self.rank} hands in '{item.name}' after it was closed")
        self._worker.wait(number)
        begin, record = time.perf_counter(), self._worker.record
        gradient = gradient.detach().view(-1)
        clock = self._worker.begin_push(number)
        try:
            if item.server == self.rank:
                self._home.push(self.rank, number, clock, gradient)
            else:
                payload = gradient if gradient.device.type == "cpu" else gradient.cpu()
                self._outgoing.send(item.server, Frame(PUSH, number, clock), payload, item.priority)
                if record:
                    record(number, "push", begin, time.perf_counter())
        except Exception as error:
            self._failure.raised(error)
            self._failure.check()

    def wait(self, number: int) -> None:
        """Returns when what this rank last handed in has come back; at once if nothing is under way."""
        self._worker.wait(number)

    def synchronize(self) -> None:
        """All items are back, and all that this rank had to send has left."""
        for number in self._worker.items:
            self._worker.wait(number)
        self._outgoing.wait()

    def finish(self) -> None:
        """A step ends: homes go on by themselves."""

    def admit(self, clock: int) -> None:
        """Raises the clock up to which updates may happen."""
        try:
            self._home.admit(clock)
        except Exception as error:
            self._failure.raised(error)
        self._failure.check()

    def sums(self) -> dict[int, Tensor]:
        """With a barrier: the sums of all items whose home is here, which the caller may change."""
        home, barrier = with_barrier(self._home, "sums")
        self.start()
        self._failure.check()
        patience = self._worker.fail_after
        if not home.completion_event().wait(patience):
            late = self._worker.describe_wait(self.rank, "all items", patience)
            self._failure.happen(late, TimeoutError)
        self._failure.check()
        return barrier.sums()

    def publish(self) -> None:
        """With a barrier: sends back the rows that the caller has updated after `sums`."""
        home, barrier = with_barrier(self._home, "publish")
        self._failure.check()
        if len(barrier.sums()) < len(home.items):
            raise RuntimeError(
                f"rank {self.rank} publishes before all is summed: call sums() first"
            )
        home.publish()

    def drain(self, seconds: float, clock: int) -> None:
        """Waits, but not long, until all is back and homes have updated all up to a clock."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._failure.reason:
            if not self._worker.outstanding() and self._home.is_updated_to(clock):
                return
            time.sleep(0.001)

    def stop(self, reason: str) -> None:
        """A rank has failed: every wait here raises the reason. `fail` is not called: they know."""
        self._failure.happen(reason, tell=False)

    def close(self) -> None:
        """Sends what is queued and ends; more calls do nothing.

        A home that closes answers nobody: `synchronize` on all ranks, then a barrier of theirs, come first.
        """
        if not self._incoming.close():
            return
        if self._watcher is not None:
            self._watcher.close()
        self._wire.close()
        if out := self._worker.outstanding():
            self._failure.happen(
                f"rank {self.rank} was closed before rank {out[0].server} had sent back {describe_items(out)}: "
                "synchronize first",
                tell=False,
            )


def check_bound(rank: int, item: Item, rows: Tensor | None) -> None:
    """Raises for rows that an item cannot have on a rank."""
    if rank != item.server and rank not in item.workers:
        raise ValueError(
            f"rank {rank} binds '{item.name}', whose workers are {item.workers} and whose "
            f"home is {item.server}: bind what is of this rank"
        )
    if rows is None:
        if item.returned or rank == item.server:
            raise ValueError(f"rank {rank} binds no rows of '{item.name}': it needs them here")
        return
    check_rows(rank, item, rows, "rows")
    if rows.requires_grad:
        raise ValueError(
            f"rank {rank} binds rows of '{item.name}' that need a gradient: take them from "
            "p.detach()"
        )


def with_barrier(home: ParameterServer, name: str) -> tuple[SynchronousServer, StepSums]:
    if not isinstance(home, SynchronousServer) or home.step_sums is None:
        raise RuntimeError(f"{name}() is for barrier=True: homes update as gradients arrive")
    return home, home.step_sums
