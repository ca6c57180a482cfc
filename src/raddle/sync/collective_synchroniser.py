"""Copies of rows agree without homes: every holder sums all gradients and updates its own copy.

On every rank:

    ready(i, gradient)   keeps it; all whose turn it is leave, in the one order of all ranks
    finish()             the end of a step: all sums have left
    wait(i)              the sum is there and the rows are updated: the next forward may use them

P3 (arXiv 1905.03960) over collectives. Ranks match sums by the order in which they issue them, so who goes
before whom is settled beforehand: a gradient that is ready early waits here for those before it. Nobody
waits for a sum before all that stand before it have left, and a step ends with all of them under way, so
ranks cannot wait for each other in a circle. There is no barrier: each item is waited for where it is used.
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

WaitingFor = Callable[
    [str, int], AbstractContextManager[None]
]  # what is waited for, and its number


class SumWaiter:
    """Waits for sums, and notes what took time. `count` is of all items: it numbers what is late."""

    def __init__(
        self, count: int, waiting_for: WaitingFor | None, record: RecordItemSpan | None
    ) -> None:
        self._count, self._waiting_for, self._record = count, waiting_for, record

    def wait_for(self, entry: SummedItem) -> Tensor:
        """An item's sum, once it is there."""
        assert entry.pending is not None
        assert entry.gradient is not None
        begin, number = time.perf_counter(), entry.item.number
        context = contextlib.nullcontext() if self._waiting_for is None else self._waiting_for(
            f"to sum the gradients of '{entry.item.name}'", entry.clock * self._count + number
        )  # fmt: skip
        with context:
            entry.pending.wait()
        self.record(number, "wait", begin)
        self.record(number, "sum", entry.start_time)
        return entry.gradient

    def record(self, number: int, what: str, begin: float) -> None:
        if self._record is not None:
            self._record(number, what, begin, time.perf_counter())


class CollectiveSynchroniser:
    """One rank's part. `start`, then `ready` and `wait` in every step, which `finish` ends.

    `apply(number, clock, gradient)` updates the rows of an item on this rank, on the thread that waits for
    it. `order` are the numbers of all items, whoever holds them. `exchange` gives what all ranks have.
    `debug`: sums leave at the end of a step, after all ranks have compared what is about to leave.
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
        self._finished = 0  # steps
        self._stopped = self._closed = False

    @property
    def log(self) -> list[UpdateEvent]:
        """Updates at homes, of which there are none here."""
        return []

    def start(self) -> None:
        """All ranks call it: they have the same order, or an error names the first difference."""
        entries = [_entry(at, self._items[number]) for at, number in enumerate(self._order)]
        if len(set(self._exchange(zlib.crc32(repr(entries).encode())))) > 1:
            check_same(self._exchange(entries), PLAN_ADVICE)

    # -- a step ------------------------------------------------------------------------------------

    def admit(self, clock: int) -> None:
        """Homes ask for it: here nothing is updated before it is waited for."""

    def submit(self, number: int, gradient: Tensor) -> None:
        """Hands in this rank's part of a sum, in memory that is ours from now on."""
        entry = self._entries.get(number)
        if entry is None:
            raise ValueError(
                f"rank {self.rank} hands in '{self._items[number].name}', whose workers are "
                f"{self._items[number].workers}: hand in what is of this rank"
            )
        check_rows(self.rank, entry.item, gradient, "a gradient")
        if self._closed:
            raise RuntimeError(f"rank {self.rank} hands in '{entry.item.name}' after it was closed")
        self.wait(number)
        if entry.gradient is not None:
            raise RuntimeError(
                f"rank {self.rank} hands in '{entry.item.name}' twice in a step: end the step first"
            )
        entry.gradient = gradient.detach().view(-1)
        entry.clock += 1
        self.issuer.add(number)

    def finish(self) -> None:
        """A step ends: whatever has not left, leaves."""
        if self._debug:
            entries = [self._entries[number] for number in self.issuer.order]
            check_orders(
                self._exchange([_describe_sum(h) for h in entries if h.gradient is not None])
            )
            self.issuer.release()
        missing = [h.item for h in self._entries.values() if h.clock <= self._finished]
        if missing:
            raise RuntimeError(
                f"rank {self.rank} ends a step without gradients of {describe_items(missing)}: hand in all"
            )
        self._finished += 1
        self.issuer.next_step()

    def wait(self, number: int) -> None:
        """Returns when an item's rows have what the steps that have ended give them."""
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
        """All that has been handed in, in steps that have ended, is applied."""
        for number in self._entries:
            self.wait(number)

    def sums(self) -> dict[int, Tensor]:
        """With a barrier, after `finish`: the sums of a step, which the caller may change and applies."""
        totals = {}
        for number, entry in self._entries.items():
            if entry.pending is not None:
                totals[number] = self._waiter.wait_for(entry)
                entry.gradient, entry.pending = None, None
        return totals

    def publish(self) -> None:
        """Homes are asked for it: here, whoever holds rows has updated them."""

    # -- the end -----------------------------------------------------------------------------------

    @property
    def unapplied(self) -> int:
        """How many items have been handed in and are not applied yet."""
        return sum(entry.gradient is not None for entry in self._entries.values())

    def stop(self, reason: str) -> None:
        """Another rank has failed: whatever waits is told by the transport."""
        self._stopped = True

    def drain(self, seconds: float, clock: int = 0) -> None:
        """Waits, but not long, until others have got what they need of this rank."""
        pending = [h for h in self._entries.values() if h.pending is not None]
        if self._stopped or not pending:
            return

        def wait() -> None:
            with contextlib.suppress(Exception):  # nobody asks for these sums any more
                for entry in pending:
                    self._waiter.wait_for(entry)
                if (last := pending[-1].gradient) is not None and last.is_cuda:
                    torch.cuda.current_stream(last.device).synchronize()

        thread = threading.Thread(target=wait, name="raddle drain", daemon=True)
        thread.start()
        thread.join(seconds)

    def close(self) -> None:
        """More calls do nothing."""
        self._closed = True


def _entry(at: int, item: Item) -> Entry:
    what = f"{item.elements} of {item.dtype}, {name_ranks(item.workers)}"
    return f"sum {at}", f"'{item.name}' ({what})"


def _describe_sum(entry: SummedItem) -> tuple[tuple[int, ...], str]:
    assert entry.gradient is not None
    kind = f"{entry.gradient.numel()} of {entry.gradient.dtype}"
    return entry.item.workers, f"'{entry.item.name}' ({kind}, step {entry.clock})"


@contextlib.contextmanager
def without_forward_modes(tensor: Tensor | None) -> Iterator[None]:
    """Without the modes of the forward that an update comes in the midst of: they are not meant for it."""
    place = "cpu" if tensor is None else tensor.device.type
    with torch.inference_mode(False), torch.autocast(place, enabled=False):
        yield
