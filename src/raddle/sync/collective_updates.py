"""The slices of a model's parameters without homes: each is summed over all ranks, which all update it.

Unused parameters. A rank without a gradient gives negative zeros, as with homes (sliced_optimizer.py). Only
such a rank looks at the sum to see whether anybody had one: a look at a GPU would hold up the host.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from raddle.sync.collective_synchroniser import CollectiveSynchroniser
from raddle.sync.optimizer_state import State
from raddle.sync.parameter_slices import Note, Slices
from raddle.sync.sliced_optimizer import SlicedOptimizer
from raddle.sync.sliced_updates import Exchange, Homing
from raddle.sync.stall_inspector import StallInspector
from raddle.sync.sum_order import order_sums
from raddle.sync.sum_timing import AllReduceCost
from raddle.transport.base import Transport


class Everywhere(Homing):
    """One rank's slices; `turns` are their numbers as their sums leave, the same on all ranks."""

    def __init__(
        self,
        slices: Slices,
        optimizer: Optimizer,
        transport: Transport,
        exchange: Exchange,
        *,
        turns: Sequence[int],
        late: StallInspector,
        debug: bool = False,
        note: Note | None = None,
    ) -> None:
        self._lacking: set[int] = set()  # parameters without a gradient on this rank
        self._fresh: set[int] = set()  # those that were given in the step that has not ended
        own = {item.number: slices.rows(item.number) for item in slices.items}
        updates = SlicedOptimizer(
            slices, optimizer, own, looks=lambda number: slices.places[number][0] in self._lacking
        )
        self.summing = CollectiveSynchroniser(
            slices.items, turns, transport, updates, exchange,
            debug=debug, waiting_for=late.waiting_for, record=slices.record(note),
        )  # fmt: skip
        super().__init__(slices, updates, self.summing, transport, exchange)

    def give(self, index: int, gradient: Tensor | None) -> None:
        self.wait(index)  # of the step before, whose update looks at what was lacking then
        (self._lacking.discard if gradient is not None else self._lacking.add)(index)
        super().give(index, gradient)
        self._due.discard(index)
        self._fresh.add(index)

    def finish(self) -> None:
        """From now on what was given is waited for: before, a forward reads what the last step left."""
        self.summing.finish()
        self._due |= self._fresh
        self._fresh.clear()

    def _states(self) -> dict[int, State]:
        return self.updates.states()

    @property
    def counters(self) -> dict[str, float]:
        d = self.summing.issuer
        return {"bytes": d.nbytes, "messages": d.count, "overtaken": d.overtaken}


def turns_of(slices: Slices, ready: Sequence[float], rate: AllReduceCost) -> list[int]:
    """The order in which slices leave; `ready` are moments, by parameter."""
    return order_sums(
        [ready[index] for index, _ in slices.places],
        [rate.seconds(item.elements) for item in slices.items],
        [item.priority for item in slices.items],
    )
