"""The slices of a model's parameters without homes: each is summed over all ranks, which all update it.

Unused parameters. A rank without a gradient gives negative zeros, as with homes (homing.py). Only such a
rank looks at the sum to see whether anybody had one: a look at a GPU would hold up the host.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.plans.sync import Sync
from raddle.sync.homing import Exchange, Homing, Note, Part
from raddle.sync.item import Item
from raddle.sync.lateness import Lateness
from raddle.sync.measuring import Rate
from raddle.sync.scheduling import urgent_first
from raddle.sync.states import State
from raddle.sync.summing import Summing
from raddle.transport.processes import Processes


class Everywhere(Homing):
    """One rank's slices; `turns` are their numbers as their sums leave, the same on all ranks."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        optimizer: Optimizer,
        sync: Sync,
        transport: Processes,
        exchange: Exchange,
        order: Sequence[int],
        *,
        turns: Sequence[int],
        late: Lateness,
        debug: bool = False,
        note: Note | None = None,
    ) -> None:
        self._turns, self._late, self._debug = turns, late, debug
        self._lacking: set[int] = set()  # parameters without a gradient on this rank
        self._fresh: set[int] = set()  # those that were given in the step that has not ended
        super().__init__(names, parameters, optimizer, sync, transport, exchange, order, note=note)

    def _open(self, stall: float) -> dict[int, Tensor]:
        self._summing = self.synchroniser = Summing(
            self._items, self._turns, self._transport, self._apply, self._exchange,
            debug=self._debug, late=self._late.waits_for,
            record=None if self._note is None else self._record,
        )  # fmt: skip
        return {item.number: self._rows(item.number) for item in self._items}

    def give(self, index: int, gradient: Tensor | None) -> None:
        self.wait(index)  # of the step before, whose update looks at what was lacking then
        (self._lacking.discard if gradient is not None else self._lacking.add)(index)
        super().give(index, gradient)
        self._due.discard(index)
        self._fresh.add(index)

    def finish(self) -> None:
        """From now on what was given is waited for: before, a forward reads what the last step left."""
        self._summing.finish()
        self._due |= self._fresh
        self._fresh.clear()

    def _looks(self, number: int) -> bool:
        return self._slices[number][0] in self._lacking

    def _everybodys(self, own: dict[int, State]) -> dict[int, State]:
        return own

    @property
    def counters(self) -> dict[str, float]:
        d = self._summing.departures
        return {"bytes": d.nbytes, "messages": d.count, "overtaken": d.overtaken}


def turns_of(
    items: Sequence[Item], slices: Sequence[Part], ready: Sequence[float], rate: Rate
) -> list[int]:
    """The order in which slices leave; `ready` are moments, by parameter."""
    return urgent_first(
        [ready[index] for index, _ in slices],
        [rate.seconds(item.elements) for item in items],
        [item.priority for item in items],
    )
