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

from raddle.sync.incoming_messages import IncomingMessages
from raddle.sync.item import Item, UpdateEvent, check_items, check_rows, describe_items
from raddle.sync.outgoing_messages import OutgoingMessages
from raddle.sync.parameter_server import Apply, ParameterServer, RecordItemSpan, RowUpdater
from raddle.sync.rank_failure import RankFailure
from raddle.sync.server_stalls import StallWatcher, poll_interval
from raddle.sync.stale_server import StaleServer
from raddle.sync.synchronous_server import StepSums, SynchronousServer
from raddle.sync.worker import Worker
from raddle.transport.wire import PUSH, Frame, Wire


class ServerSynchroniser:
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
        self._failure = failure = RankFailure(fail)
        self._outgoing = OutgoingMessages(wire, failure, timeout)
        # The home knows who is missing: others wait a little longer, so that it speaks first.
        fail_after = timeout + 4 * poll_interval(stall, timeout)
        self._worker = Worker(
            self.rank, failure, lambda: self._server.stalled_items(),
            stall=stall, fail_after=fail_after, record=record,
        )  # fmt: skip
        common = (
            self.rank,
            RowUpdater(self.rank, apply, record),
            self._outgoing.send,
            self._worker.mark_returned,
        )
        self._server: ParameterServer = (
            SynchronousServer(
                *common, step_sums=StepSums(failure) if barrier else None, admitted=admitted
            )
            if staleness == 0
            else StaleServer(*common, staleness)
        )
        self._incoming = IncomingMessages(self.rank, items, self._server, self._worker, failure)
        self._watch = partial(
            StallWatcher,
            self.rank,
            self._server.stalled_items,
            failure,
            stall=stall,
            timeout=timeout,
        )
        self._watcher: StallWatcher | None = None
        self._started = False

    @property
    def log(self) -> list[UpdateEvent]:
        """Updates at this home, in their order; of a long run the latest 100 000 or more."""
        return self._server.updater.log

    def bind(self, number: int, rows: Tensor | None, master: Tensor | None = None) -> None:
        """Says where an item's rows are on this rank, worker or home: a contiguous view from p.detach().

        A worker has none (None) of an item that is not returned.
        `master`: with staleness, what the home updates, if it has a copy of its own already.
        """
        item = self._items[number]
        check_binding(self.rank, item, rows)
        if self._started or number in self._worker.items or number in self._server.items:
            raise ValueError(
                f"rank {self.rank} binds '{item.name}' again: bind once, before `start`"
            )
        if self.rank in item.workers:
            self._worker.bind(item, rows)
        if rows is not None and self.rank == item.server:
            self._server.bind(item, rows, master)

    def rows_at_server(self, number: int) -> Tensor:
        """What `apply` updates: the bound rows, or, with staleness, the home's own copy of them."""
        return self._server.items[number].master

    def start(self) -> None:
        """Lets messages in, once all items are bound: what arrives needs rows. `ready` does it too."""
        if self._started:
            return
        local_items = [i for i in self._items if self.rank == i.server or self.rank in i.workers]
        bound = self._worker.items.keys() | self._server.items.keys()
        missing = [item for item in local_items if item.number not in bound]
        if missing:
            raise ValueError(
                f"rank {self.rank} starts without rows of {describe_items(missing)}: bind them"
            )
        self._started = True
        self._wire.expect({item.number: item.nbytes for item in local_items})
        if self._server.items:
            self._watcher = self._watch()
        self._wire.start(self._incoming, self._incoming.on_lost_peer)

    def submit(self, number: int, gradient: Tensor) -> None:
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
                self._server.push(self.rank, number, clock, gradient)
            else:
                payload = gradient if gradient.device.type == "cpu" else gradient.cpu()
                self._outgoing.send(item.server, Frame(PUSH, number, clock), payload, item.priority)
                if record:
                    record(number, "push", begin, time.perf_counter())
        except Exception as error:
            self._failure.set_exception(error)
            self._failure.check()

    def wait(self, number: int) -> None:
        """Returns when what this rank last handed in has come back; at once if nothing is under way."""
        self._worker.wait(number)

    def synchronize(self) -> None:
        """All items are back, and all that this rank had to send has left."""
        for number in self._worker.items:
            self._worker.wait(number)
        self._outgoing.wait_until_sent()

    def finish(self) -> None:
        """A step ends: homes go on by themselves."""

    def admit(self, clock: int) -> None:
        """Raises the clock up to which updates may happen."""
        try:
            self._server.admit(clock)
        except Exception as error:
            self._failure.set_exception(error)
        self._failure.check()

    def sums(self) -> dict[int, Tensor]:
        """With a barrier: the sums of all items whose home is here, which the caller may change."""
        server, step_sums = require_barrier(self._server, "sums")
        self.start()
        self._failure.check()
        fail_after = self._worker.fail_after
        if not server.completion_event().wait(fail_after):
            message = self._worker.describe_wait(self.rank, "all items", fail_after)
            self._failure.set_reason(message, TimeoutError)
        self._failure.check()
        return step_sums.sums()

    def publish(self) -> None:
        """With a barrier: sends back the rows that the caller has updated after `sums`."""
        server, step_sums = require_barrier(self._server, "publish")
        self._failure.check()
        if len(step_sums.sums()) < len(server.items):
            raise RuntimeError(
                f"rank {self.rank} publishes before all is summed: call sums() first"
            )
        server.publish()

    def drain(self, seconds: float, clock: int) -> None:
        """Waits, but not long, until all is back and homes have updated all up to a clock."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._failure.reason:
            if not self._worker.outstanding() and self._server.is_updated_to(clock):
                return
            time.sleep(0.001)

    def stop(self, reason: str) -> None:
        """A rank has failed: every wait here raises the reason. `fail` is not called: they know."""
        self._failure.set_reason(reason, notify=False)

    def close(self) -> None:
        """Sends what is queued and ends; more calls do nothing.

        A home that closes answers nobody: `synchronize` on all ranks, then a barrier of theirs, come first.
        """
        if not self._incoming.close():
            return
        if self._watcher is not None:
            self._watcher.close()
        self._wire.close()
        if outstanding := self._worker.outstanding():
            self._failure.set_reason(
                f"rank {self.rank} was closed before rank {outstanding[0].server} had sent back {describe_items(outstanding)}: "
                "synchronize first",
                notify=False,
            )


def check_binding(rank: int, item: Item, rows: Tensor | None) -> None:
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


def require_barrier(server: ParameterServer, name: str) -> tuple[SynchronousServer, StepSums]:
    if not isinstance(server, SynchronousServer) or server.step_sums is None:
        raise RuntimeError(f"{name}() is for barrier=True: homes update as gradients arrive")
    return server, server.step_sums
