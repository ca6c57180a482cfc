"""Synchronises slices of parameters through servers (parameter server, sharded updates, P3).

An item is a slice of a parameter (some of its rows) or a bundle of slices. The workers of an item are the
ranks that have a copy of it; its server is the rank that updates it (with sharded updates, the holder of
the shard). On every rank:

    submit(i, gradient)     a worker sends its gradient of item i to the item's server (a push)
    ...                     the server sums, updates and sends the rows back (a pull), on receiving threads
    wait(i)                 returns when the rows of item i are up to date: the next forward may use them

A step does not end with a barrier: each item is waited for where it is used, and the most urgent item is
sent first. A clock counts the gradients that a worker has submitted of an item: 1 in the first step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from raddle.sync.incoming_messages import IncomingMessages
from raddle.sync.item import Item, UpdateEvent, check_items, check_rows, describe_items
from raddle.sync.item_rows import ItemRows
from raddle.sync.outgoing_messages import OutgoingMessages
from raddle.sync.parameter_server import Apply, ParameterServer, RecordItemSpan, RowUpdater
from raddle.sync.rank_failure import RankFailure
from raddle.sync.server_stalls import StallWatcher, poll_interval
from raddle.sync.stale_server import StaleServer
from raddle.sync.synchronous_server import StepSums, SynchronousServer
from raddle.sync.worker import Worker
from raddle.transport.wire import PUSH, Frame, Wire


class ServerSynchroniser:
    """Synchronises the items of one rank, as a worker and as a server.

    Call `bind` for each item, then `start`; in every step `submit` for each item, and `wait` before a use.

    apply(number, clock, gradient): updates `rows_at_server(number)` and only reads the gradient. It runs on
        the thread that receives the last gradient, never on two threads at once.
    staleness: 0 is synchronous; s lets a worker be s steps ahead of the slowest one; None any number.
    barrier: nothing is updated before all gradients of the step are summed; the caller updates the rows
        itself, between `sums` and `publish`.
    timeout, stall: seconds after which a wait fails, and after which it logs a warning.
    admitted: the clock up to which updates may happen, raised by `admit`; None: no limit. It is for servers
        that are not workers: there the gradients may arrive before the learning rate of their step is
        known.
    fail(reason): called once if something goes wrong here, to stop the other ranks.
    record: adds a bar to the Chrome trace; None: there is no trace.
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
        # A server knows which ranks are missing. Workers wait a little longer, so that its message comes
        # first.
        fail_after = timeout + 4 * poll_interval(stall, timeout)
        self._worker = Worker(
            self.rank, failure, lambda: self._server.stalled_items(),
            stall=stall, fail_after=fail_after, record=record,
        )  # fmt: skip
        common = (  # the arguments of both kinds of servers
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
        self._start_watcher = partial(  # `start` calls it; a StallWatcher runs from then on
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
        """The updates made on this rank as a server, in their order: at least the latest 100 000."""
        return self._server.updater.log

    def bind(
        self,
        number: int,
        rows: Tensor | Sequence[Tensor],
        master: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Sets where the rows of an item are on this rank: a contiguous view of p.detach() for each slice.

        master: with staleness, the copy of the rows that the server updates, if there is one already.
        """
        item = self._items[number]
        bound_rows = ItemRows(rows)
        check_binding(self.rank, item, bound_rows)
        if self._started or number in self._worker.items or number in self._server.items:
            raise ValueError(
                f"rank {self.rank} binds '{item.name}' again: bind once, before `start`"
            )
        if self.rank in item.workers:
            self._worker.bind(item, bound_rows)
        if self.rank == item.server:
            self._server.bind(item, bound_rows, None if master is None else ItemRows(master))

    def rows_at_server(self, number: int) -> tuple[Tensor, ...]:
        """Returns the rows that `apply` updates: the bound rows or, with staleness, the server's copy."""
        return self._server.items[number].master.parts

    def start(self) -> None:
        """Starts to receive messages. All items must be bound before. `submit` calls it too."""
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
        # Informs the wire how large the messages of each item are.
        self._wire.expect({item.number: item.nbytes for item in local_items})
        if self._server.items:
            self._watcher = self._start_watcher()
        self._wire.start(self._incoming, self._incoming.on_lost_peer)

    def submit(self, number: int, gradient: Tensor) -> None:
        """Submits this rank's gradient of an item. The gradient must not change until `wait` returns."""
        self.start()
        item = self._items[number]
        if number not in self._worker.items:
            raise ValueError(
                f"rank {self.rank} submits '{item.name}', whose workers are {item.workers}: "
                "submit only items of this rank"
            )
        check_rows(self.rank, item, [gradient], "a gradient")
        if self._incoming.closed:
            raise RuntimeError(f"rank {self.rank} submits '{item.name}' after it was closed")
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
        """Returns when the item is up to date with the gradient that this rank submitted last."""
        self._worker.wait(number)

    def synchronize(self) -> None:
        """Returns when all items are up to date and all messages of this rank are sent."""
        for number in self._worker.items:
            self._worker.wait(number)
        self._outgoing.wait_until_sent()

    def finish(self) -> None:
        """Ends a step. Only CollectiveSynchroniser has something to do then.

        Here servers update when gradients arrive or, with a barrier, the caller does after `sums`.
        """

    def admit(self, clock: int) -> None:
        """Raises the clock up to which updates may happen."""
        try:
            self._server.admit(clock)
        except Exception as error:
            self._failure.set_exception(error)
        self._failure.check()

    def sums(self) -> dict[int, Tensor]:
        """Returns the summed gradients of this server's items, for the caller to apply (with a barrier)."""
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
        """Sends the rows to the workers, after the caller has updated them with `sums` (with a barrier)."""
        server, step_sums = require_barrier(self._server, "publish")
        self._failure.check()
        if len(step_sums.sums()) < len(server.items):
            raise RuntimeError(
                f"rank {self.rank} publishes before all is summed: call sums() first"
            )
        server.publish()

    def drain(self, seconds: float, clock: int) -> None:
        """Waits at most `seconds` until all items are up to date on this rank.

        It also waits until this rank, as a server, has made all updates up to `clock`.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._failure.reason:
            if not self._worker.outstanding() and self._server.is_updated_to(clock):
                return
            time.sleep(0.001)  # seconds until it looks again

    def stop(self, reason: str) -> None:
        """Makes every wait here raise `reason`, because another rank has failed. `fail` is not called."""
        self._failure.set_reason(reason, notify=False)

    def close(self) -> None:
        """Sends the queued messages and ends. Calling it again does nothing.

        A closed server sends nothing back, so all ranks call `synchronize` and then a barrier before.
        """
        if not self._incoming.close():
            return
        if self._watcher is not None:
            self._watcher.close()
        self._wire.close()
        if outstanding := self._worker.outstanding():
            self._failure.set_reason(
                f"rank {self.rank} was closed before rank {outstanding[0].server} had sent back "
                f"{describe_items(outstanding)}: synchronize first",
                notify=False,
            )


def check_binding(rank: int, item: Item, rows: ItemRows) -> None:
    """Raises ValueError if these rows cannot be bound to the item on this rank."""
    if rank != item.server and rank not in item.workers:
        raise ValueError(
            f"rank {rank} binds '{item.name}', whose workers are {item.workers} and whose "
            f"server is {item.server}: bind items of this rank"
        )
    check_rows(rank, item, rows.parts, "rows")
    if any(part.requires_grad for part in rows.parts):
        raise ValueError(
            f"rank {rank} binds rows of '{item.name}' that need a gradient: take them from "
            "p.detach()"
        )


def require_barrier(server: ParameterServer, name: str) -> tuple[SynchronousServer, StepSums]:
    """Returns the server and its sums; raises without a barrier. name: of the method, for the message."""
    if not isinstance(server, SynchronousServer) or server.step_sums is None:
        raise RuntimeError(f"{name}() is for barrier=True: servers update as gradients arrive")
    return server, server.step_sums
