"""Sums leave a rank in the one order of all ranks, whenever their gradients are ready."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from raddle.program.turns import Turns
from raddle.sync.item import Item
from raddle.transport.base import DONE, Pending, Transport


class Held:
    """One item at a holder."""

    __slots__ = ("clock", "gradient", "item", "left", "pending")

    def __init__(self, item: Item) -> None:
        self.item, self.clock = item, 0
        self.gradient: Tensor | None = None  # of a step, until it is applied; then its sum
        self.pending: Pending | None = None
        self.left = 0.0  # when


class Departures:
    """`order` are the items that this rank sums with others. `hold`: nothing leaves before `all`."""

    def __init__(
        self, held: dict[int, Held], order: Sequence[int], transport: Transport, *, hold: bool
    ) -> None:
        self.count = self.nbytes = self.overtaken = 0  # sums, and those that passed others
        self.order = [n for n in order if n in held and len(held[n].item.workers) > 1]
        self._held, self._transport, self._hold = held, transport, hold
        self._ready: dict[
            int, None
        ] = {}  # with `hold` all, else what waits for its turn, as it came
        self._turns = Turns(self.order)

    def ready(self, number: int) -> None:
        """An item's gradient is there: it leaves with all that have waited for it."""
        held = self._held[number]
        if len(held.item.workers) == 1:
            held.pending = DONE
            return
        self._ready[number] = None
        if not self._hold:
            self._go(self._turns.complete([number]))

    def all(self) -> None:
        """What was held back leaves."""
        self._go(self._turns.complete(list(self._ready)))

    def next_step(self) -> None:
        """All sums of a step have left: the order begins again."""
        self._turns = Turns(self.order)

    def _go(self, leaving: Sequence[int]) -> None:
        for number in leaving:
            held = self._held[number]
            assert held.gradient is not None
            self.overtaken += next(iter(self._ready)) != number
            del self._ready[number]
            self.count += 1
            self.nbytes += held.item.nbytes
            held.left = time.perf_counter()
            held.pending = self._transport.all_reduce(
                held.item.workers, number, held.gradient, f"the gradient of '{held.item.name}'"
            )
