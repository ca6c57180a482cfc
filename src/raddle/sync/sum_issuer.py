"""Issues the all-reduces of items (slices of parameters) in one order that is the same on all ranks.

Ranks match all-reduces by the order in which they issue them. So a gradient that is ready early waits
here until all those before it in the order have been issued.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from raddle.program.turns import Turns
from raddle.sync.item import Item
from raddle.transport.base import DONE, Pending, Transport


class SummedItem:
    """The state of one item that this rank sums with others."""

    __slots__ = ("clock", "gradient", "item", "pending", "start_time")

    def __init__(self, item: Item) -> None:
        self.item, self.clock = item, 0  # clock: how many gradients were submitted
        self.gradient: Tensor | None = None  # summed in place; None once it is applied
        self.pending: Pending | None = None  # the all-reduce
        self.start_time = 0.0  # when the all-reduce was issued (time.perf_counter)


class SumIssuer:
    """Issues the all-reduces of one rank.

    entries: number -> item, for the items of this rank. order: numbers of all items, in the order of their
    all-reduces. hold_back: nothing is issued before `release`.
    """

    def __init__(
        self,
        entries: dict[int, SummedItem],
        order: Sequence[int],
        transport: Transport,
        *,
        hold_back: bool,
    ) -> None:
        # All-reduces issued, their bytes, and how often one overtook another: it was issued before one
        # whose gradient was ready earlier.
        self.count = self.nbytes = self.overtaken = 0
        self.order = [n for n in order if n in entries and len(entries[n].item.workers) > 1]
        self._entries, self._transport, self._hold_back = entries, transport, hold_back
        self._waiting: dict[int, None] = {}  # ready items that are not issued, as they came
        # Turns.complete(ready) returns the items whose turn it is now (program/turns.py).
        self._turns = Turns(self.order)

    def add(self, number: int) -> None:
        """Takes note that an item's gradient is ready, and issues all sums whose turn it is now."""
        entry = self._entries[number]
        if len(entry.item.workers) == 1:  # there is nothing to sum
            entry.pending = DONE  # a wait that returns at once (transport/base.py)
            return
        self._waiting[number] = None
        if not self._hold_back:
            self._issue(self._turns.complete([number]))

    def release(self) -> None:
        """Issues the sums that were held back."""
        self._issue(self._turns.complete(list(self._waiting)))

    def next_step(self) -> None:
        """Starts the order again, after all sums of a step were issued."""
        self._turns = Turns(self.order)

    def _issue(self, numbers: Sequence[int]) -> None:
        """Issues the all-reduces of these items, in this order."""
        for number in numbers:
            entry = self._entries[number]
            assert entry.gradient is not None
            # One more if the item that has been ready for longest is another one
            self.overtaken += next(iter(self._waiting)) != number
            del self._waiting[number]
            self.count += 1
            self.nbytes += entry.item.nbytes
            entry.start_time = time.perf_counter()
            entry.pending = self._transport.all_reduce(
                entry.item.workers, number, entry.gradient, f"the gradient of '{entry.item.name}'"
            )
