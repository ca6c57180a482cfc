"""Synchronises slices of parameters without servers: all ranks all-reduce each slice and update it.

This is P3 (arXiv 1905.03960: the most urgent slice first) over collectives. An item is a slice of a
parameter; its workers are the ranks that have a copy. On every rank:

    submit(i, gradient)  stores the gradient of item i; issues the all-reduces whose turn it is
    finish()             ends a step: all its all-reduces are issued
    wait(i)              waits for the sum of item i and updates its rows: the next forward may use them

Ranks match all-reduces by the order in which they issue them, so the order is fixed beforehand: a
gradient that is ready early waits for those before it. No rank waits for a sum before it has issued all
sums of the step, so there is no deadlock. A step does not end with a barrier: each item is waited for
where it is used. A clock counts the gradients of an item that this rank has submitted: 1 in the first step.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from raddle.sync.consistency import PLAN_ADVICE, Entry, check_orders, check_same
from raddle.sync.item import Item, UpdateEvent, check_items, check_rows, describe_items
from raddle.sync.parameter_server import Apply, RecordItemSpan
from raddle.sync.sum_issuer import SumIssuer, SummedItem
from raddle.transport.base import Transport
from raddle.transport.wire import name_ranks

WaitingFor = Callable[[str, int], AbstractContextManager[None]]  # text, number of the wait


class SumWaiter:
    """Waits for all-reduces, and records how long they took.

    count: the number of items. waiting_for: tells the stall inspector (stall_inspector.py) what this rank
    waits for. record: adds a bar to the Chrome trace.
    """

    def __init__(
        self, count: int, waiting_for: WaitingFor | None, record: RecordItemSpan | None
    ) -> None:
        self._count, self._waiting_for, self._record = count, waiting_for, record

    def wait_for(self, entry: SummedItem) -> Tensor:
        """Waits for an item's all-reduce and returns the sum, which has replaced the gradient."""
        assert entry.pending is not None
        assert entry.gradient is not None
        begin, number = time.perf_counter(), entry.item.number
        # The wait has a number of its own for each item and step, the same on all ranks.
        context = contextlib.nullcontext() if self._waiting_for is None else self._waiting_for(
            f"to sum the gradients of '{entry.item.name}'", entry.clock * self._count + number
        )  # fmt: skip
        with context:
            entry.pending.wait()
        self.record(number, "wait", begin)
        self.record(number, "sum", entry.start_time)
        return entry.gradient

    def record(self, number: int, lane: str, begin: float) -> None:
        """Adds a bar that ends now to a lane of the trace, if there is a trace."""
        if self._record is not None:
            self._record(number, lane, begin, time.perf_counter())


class CollectiveSynchroniser:
    """Synchronises the items of one rank.

    Call `start` first, in every step `submit` for each item and then `finish`, and `wait` before a use.

    order: numbers of all items of all ranks, in the order of their all-reduces.
    apply(number, clock, gradient): updates an item's rows on this rank, on the thread that waits for it.
    exchange: gathers an object from every rank.
    debug: all-reduces are issued at the end of a step, after all ranks have compared their lists of them.
    waiting_for, record: see SumWaiter.
    """

    def __init__(
        self,
        items: Sequence[Item],
        order: Sequence[int],
        transport: Transport,
        apply: Apply,
        exchange: Callable[[Any], list[Any]],
        *,
        debug: bool = False,
        waiting_for: WaitingFor | None = None,
        record: RecordItemSpan | None = None,
    ) -> None:
        check_items(items, transport.size, servers=False)
        self.rank = transport.rank
        self._items, self._order = items, order
        self._apply, self._exchange, self._debug = apply, exchange, debug
        self._entries = {i.number: SummedItem(i) for i in items if self.rank in i.workers}
        self.issuer = SumIssuer(self._entries, order, transport, hold_back=debug)
        self._waiter = SumWaiter(len(items), waiting_for, record)
        self._finished = 0  # steps that have ended
        self._stopped = self._closed = False

    @property
    def log(self) -> list[UpdateEvent]:
        """Updates made by a server. There are no servers here."""
        return []

    def start(self) -> None:
        """Checks that all ranks have the same order. All ranks call it.

        The error names the first difference.
        """
        # Entries of consistency.py: (name, value) pairs, which ranks compare.
        entries = [
            _entry(position, self._items[number]) for position, number in enumerate(self._order)
        ]
        # Ranks exchange checksums first, because the entries may be long and are nearly always equal.
        if len(set(self._exchange(zlib.crc32(repr(entries).encode())))) > 1:
            check_same(self._exchange(entries), PLAN_ADVICE)

    # -- a step ------------------------------------------------------------------------------------

    def admit(self, clock: int) -> None:
        """Does nothing. In ServerSynchroniser it lets servers update; here `wait` makes the update."""

    def submit(self, number: int, gradient: Tensor) -> None:
        """Submits this rank's gradient of an item. The sum replaces it, so the caller must not use it."""
        entry = self._entries.get(number)
        if entry is None:
            raise ValueError(
                f"rank {self.rank} submits '{self._items[number].name}', whose workers are "
                f"{self._items[number].workers}: submit only items of this rank"
            )
        check_rows(self.rank, entry.item, [gradient], "a gradient")
        if self._closed:
            raise RuntimeError(f"rank {self.rank} submits '{entry.item.name}' after it was closed")
        self.wait(number)  # for the update of the last step, if nothing has waited for it yet
        if entry.gradient is not None:
            raise RuntimeError(
                f"rank {self.rank} submits '{entry.item.name}' twice in a step: end the step first"
            )
        entry.gradient = gradient.detach().view(-1)
        entry.clock += 1
        self.issuer.add(number)

    def finish(self) -> None:
        """Ends a step, in which all items of this rank must have been submitted."""
        if self._debug:
            entries = [self._entries[number] for number in self.issuer.order]
            check_orders(
                self._exchange([_describe_sum(e) for e in entries if e.gradient is not None])
            )
            self.issuer.release()
        missing = [e.item for e in self._entries.values() if e.clock <= self._finished]
        if missing:
            raise RuntimeError(
                f"rank {self.rank} ends a step without gradients of {describe_items(missing)}: submit all"
            )
        self._finished += 1
        self.issuer.next_step()

    def wait(self, number: int) -> None:
        """Returns when an item's rows are up to date with all steps that have ended."""
        entry = self._entries.get(number)
        if entry is None or entry.pending is None or entry.clock > self._finished:
            return
        with without_forward_modes(entry.gradient):
            total = self._waiter.wait_for(entry)
            begin = time.perf_counter()
            entry.gradient, entry.pending = None, None
            self._apply(number, entry.clock, total)
            self._waiter.record(number, "update", begin)

    def synchronize(self) -> None:
        """Waits for all items of this rank."""
        for number in self._entries:
            self.wait(number)

    def sums(self) -> dict[int, Tensor]:
        """Waits for the sums of a step and returns them, for a caller that makes the updates itself.

        It is for steps with a barrier: no update before all sums. Call it after `finish`.
        """
        totals = {}
        for number, entry in self._entries.items():
            if entry.pending is not None:
                totals[number] = self._waiter.wait_for(entry)
                entry.gradient, entry.pending = None, None
        return totals

    def publish(self) -> None:
        """Does nothing. In ServerSynchroniser it sends updated rows; here every rank updates its own."""

    # -- the end -----------------------------------------------------------------------------------

    @property
    def unapplied(self) -> int:
        """The number of items that were submitted and are not applied yet."""
        return sum(entry.gradient is not None for entry in self._entries.values())

    def stop(self, reason: str) -> None:
        """Makes `drain` return at once: another rank has failed. The transport ends all other waits."""
        self._stopped = True

    def drain(self, seconds: float, clock: int = 0) -> None:
        """Waits at most `seconds` for the all-reduces that other ranks still need from this one.

        clock: not used here, but by ServerSynchroniser.
        """
        pending = [e for e in self._entries.values() if e.pending is not None]
        if self._stopped or not pending:
            return

        def wait() -> None:
            """Waits for all sums, on a thread, so that `drain` can return before."""
            with contextlib.suppress(Exception):  # nobody uses these sums any more
                for entry in pending:
                    self._waiter.wait_for(entry)
                last_sum = pending[-1].gradient
                if last_sum is not None and last_sum.is_cuda:
                    torch.cuda.current_stream(last_sum.device).synchronize()

        thread = threading.Thread(target=wait, name="raddle drain", daemon=True)
        thread.start()
        thread.join(seconds)

    def close(self) -> None:
        """Refuses further items. Calling it again does nothing."""
        self._closed = True


def _entry(position: int, item: Item) -> Entry:
    """Returns a description of an item's sum for check_same. position: its place in the order."""
    size_and_ranks = f"{item.elements} of {item.dtype}, {name_ranks(item.workers)}"
    return f"sum {position}", f"'{item.name}' ({size_and_ranks})"


def _describe_sum(entry: SummedItem) -> tuple[tuple[int, ...], str]:
    """Returns (the ranks that take part, a text) for an item's sum; for check_orders."""
    assert entry.gradient is not None
    kind = f"{entry.gradient.numel()} of {entry.gradient.dtype}"
    return entry.item.workers, f"'{entry.item.name}' ({kind}, step {entry.clock})"


@contextlib.contextmanager
def without_forward_modes(tensor: Tensor | None) -> Iterator[None]:
    """Switches inference mode and autocast off: an update may run inside a forward that uses them."""
    device_type = "cpu" if tensor is None else tensor.device.type
    with torch.inference_mode(False), torch.autocast(device_type, enabled=False):
        yield
