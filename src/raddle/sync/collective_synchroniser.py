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

from raddle.sync.consistency import SAME, Line, check_orders, check_same
from raddle.sync.item import Item, UpdateEvent, check_items, check_rows, describe_items
from raddle.sync.parameter_server import Apply, RecordItemSpan
from raddle.sync.sum_issuer import SumIssuer, SummedItem
from raddle.transport.base import Transport
from raddle.transport.wire import name_ranks

Late = Callable[[str, int], AbstractContextManager[None]]  # what is waited for, and its number


class ArrivingSums:
    """Waits for sums, and notes what took time. `count` is of all items: it numbers what is late."""

    def __init__(self, count: int, late: Late | None, record: RecordItemSpan | None) -> None:
        self._count, self._late, self._record = count, late, record

    def take(self, held: SummedItem) -> Tensor:
        """An item's sum, once it is there."""
        assert held.pending is not None
        assert held.gradient is not None
        begin, number = time.perf_counter(), held.item.number
        late = contextlib.nullcontext() if self._late is None else self._late(
            f"to sum the gradients of '{held.item.name}'", held.clock * self._count + number
        )  # fmt: skip
        with late:
            held.pending.wait()
        self.note(number, "wait", begin)
        self.note(number, "sum", held.start_time)
        return held.gradient

    def note(self, number: int, what: str, begin: float) -> None:
        if self._record is not None:
            self._record(number, what, begin, time.perf_counter())


class Summing:
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
        late: Late | None = None,
        record: RecordItemSpan | None = None,
    ) -> None:
        check_items(items, transport.size, servers=False)
        self.rank = transport.rank
        self._items, self._order = items, order
        self._apply, self._exchange, self._debug = apply, exchange, debug
        self._held = {i.number: SummedItem(i) for i in items if self.rank in i.workers}
        self.departures = SumIssuer(self._held, order, transport, hold_back=debug)
        self._arriving = ArrivingSums(len(items), late, record)
        self._finished = 0  # steps
        self._stopped = self._closed = False

    @property
    def log(self) -> list[UpdateEvent]:
        """Updates at homes, of which there are none here."""
        return []

    def start(self) -> None:
        """All ranks call it: they have the same order, or an error names the first difference."""
        lines = [_line(at, self._items[number]) for at, number in enumerate(self._order)]
        if len(set(self._exchange(zlib.crc32(repr(lines).encode())))) > 1:
            check_same(self._exchange(lines), SAME)

    # -- a step ------------------------------------------------------------------------------------

    def admit(self, clock: int) -> None:
        """Homes ask for it: here nothing is updated before it is waited for."""

    def ready(self, number: int, gradient: Tensor) -> None:
        """Hands in this rank's part of a sum, in memory that is ours from now on."""
        held = self._held.get(number)
        if held is None:
            raise ValueError(
                f"rank {self.rank} hands in '{self._items[number].name}', whose workers are "
                f"{self._items[number].workers}: hand in what is of this rank"
            )
        check_rows(self.rank, held.item, gradient, "a gradient")
        if self._closed:
            raise RuntimeError(f"rank {self.rank} hands in '{held.item.name}' after it was closed")
        self.wait(number)
        if held.gradient is not None:
            raise RuntimeError(
                f"rank {self.rank} hands in '{held.item.name}' twice in a step: end the step first"
            )
        held.gradient = gradient.detach().view(-1)
        held.clock += 1
        self.departures.add(number)

    def finish(self) -> None:
        """A step ends: whatever has not left, leaves."""
        if self._debug:
            own = [self._held[number] for number in self.departures.order]
            check_orders(self._exchange([_what(h) for h in own if h.gradient is not None]))
            self.departures.release()
        missing = [h.item for h in self._held.values() if h.clock <= self._finished]
        if missing:
            raise RuntimeError(
                f"rank {self.rank} ends a step without gradients of {describe_items(missing)}: hand in all"
            )
        self._finished += 1
        self.departures.next_step()

    def wait(self, number: int) -> None:
        """Returns when an item's rows have what the steps that have ended give them."""
        held = self._held.get(number)
        if held is None or held.pending is None or held.clock > self._finished:
            return
        with plainly(held.gradient):
            total = self._arriving.take(held)
            begin = time.perf_counter()
            held.gradient, held.pending = None, None
            self._apply(number, held.clock, total)
            self._arriving.note(number, "update", begin)

    def synchronize(self) -> None:
        """All that has been handed in, in steps that have ended, is applied."""
        for number in self._held:
            self.wait(number)

    def sums(self) -> dict[int, Tensor]:
        """With a barrier, after `finish`: the sums of a step, which the caller may change and applies."""
        found = {}
        for number, held in self._held.items():
            if held.pending is not None:
                found[number] = self._arriving.take(held)
                held.gradient, held.pending = None, None
        return found

    def publish(self) -> None:
        """Homes are asked for it: here, whoever holds rows has updated them."""

    # -- the end -----------------------------------------------------------------------------------

    @property
    def waits(self) -> int:
        """How many items have been handed in and are not applied yet."""
        return sum(held.gradient is not None for held in self._held.values())

    def stop(self, reason: str) -> None:
        """Another rank has failed: whatever waits is told by the transport."""
        self._stopped = True

    def drain(self, seconds: float, clock: int = 0) -> None:
        """Waits, but not long, until others have got what they need of this rank."""
        under_way = [h for h in self._held.values() if h.pending is not None]
        if self._stopped or not under_way:
            return

        def wait() -> None:
            with contextlib.suppress(Exception):  # nobody asks for these sums any more
                for held in under_way:
                    self._arriving.take(held)
                if (last := under_way[-1].gradient) is not None and last.is_cuda:
                    torch.cuda.current_stream(last.device).synchronize()

        thread = threading.Thread(target=wait, name="raddle drain", daemon=True)
        thread.start()
        thread.join(seconds)

    def close(self) -> None:
        """More calls do nothing."""
        self._closed = True


def _line(at: int, item: Item) -> Line:
    what = f"{item.elements} of {item.dtype}, {name_ranks(item.workers)}"
    return f"sum {at}", f"'{item.name}' ({what})"


def _what(held: SummedItem) -> tuple[tuple[int, ...], str]:
    assert held.gradient is not None
    kind = f"{held.gradient.numel()} of {held.gradient.dtype}"
    return held.item.workers, f"'{held.item.name}' ({kind}, step {held.clock})"


@contextlib.contextmanager
def plainly(tensor: Tensor | None) -> Iterator[None]:
    """Without the modes of the forward that an update comes in the midst of: they are not meant for it."""
    place = "cpu" if tensor is None else tensor.device.type
    with torch.inference_mode(False), torch.autocast(place, enabled=False):
        yield
