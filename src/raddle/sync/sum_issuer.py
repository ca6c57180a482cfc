"""Sums leave a rank in the one order of all ranks, whenever their gradients are ready."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from raddle.program.turns import Turns
from raddle.sync.item import Item
from raddle.transport.base import DONE, Pending, Transport


class SummedItem:
    """One item at a holder."""

    __slots__ = ("clock", "gradient", "item", "pending", "start_time")

    def __init__(self, item: Item) -> None:
        self.item, self.clock = item, 0
        self.gradient: Tensor | None = None  # of a step, until it is applied; then its sum
        self.pending: Pending | None = None
        self.start_time = 0.0  # when


class SumIssuer:
    """`order` are the items that this rank sums with others. `hold`: nothing leaves before `all`."""

    def __init__(
        self,
        entries: dict[int, SummedItem],
        order: Sequence[int],
        transport: Transport,
        *,
        hold_back: bool,
    ) -> None:
        self.count = self.nbytes = self.overtaken = 0  # sums, and those that passed others
        self.order = [n for n in order if n in entries and len(entries[n].item.workers) > 1]
        self._entries, self._transport, self._hold_back = entries, transport, hold_back
        self._waiting: dict[
            int, None
        ] = {}  # with `hold` all, else what waits for its turn, as it came
        self._turns = Turns(self.order)

    def add(self, number: int) -> None:
        """An item's gradient is there: it leaves with all that have waited for it."""
        entry = self._entries[number]
        if len(entry.item.workers) == 1:
            entry.pending = DONE
            return
        self._waiting[number] = None
        if not self._hold_back:
            self._issue(self._turns.complete([number]))

    def release(self) -> None:
        """What was held back leaves."""
        self._issue(self._turns.complete(list(self._waiting)))

    def next_step(self) -> None:
        """All sums of a step have left: the order begins again."""
        self._turns = Turns(self.order)

    def _issue(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            entry = self._entries[number]
            assert entry.gradient is not None
            self.overtaken += next(iter(self._waiting)) != number
            del self._waiting[number]
            self.count += 1
            self.nbytes += entry.item.nbytes
            entry.start_time = time.perf_counter()
            entry.pending = self._transport.all_reduce(
                entry.item.workers, number, entry.gradient, f"the gradient of '{entry.item.name}'"
            )
