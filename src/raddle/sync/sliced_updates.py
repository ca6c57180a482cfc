"""The slices of a model's parameters at their homes: gradients are handed in, updated rows come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from raddle.sync.collective_synchroniser import CollectiveSynchroniser
from raddle.sync.item import UpdateEvent
from raddle.sync.optimizer_state import State, gather
from raddle.sync.parameter_slices import Note, Slices
from raddle.sync.server_synchroniser import ServerSynchroniser
from raddle.sync.sliced_optimizer import SlicedOptimizer, absent_like
from raddle.transport.base import Transport

Exchange = Callable[[Any], list[Any]]


def with_homes(
    slices: Slices,
    optimizer: Optimizer,
    staleness: int | None,
    transport: Transport,
    exchange: Exchange,
    *,
    stall: float = 10.0,
    note: Note | None = None,
) -> Homing:
    """Slices go to their homes; with staleness these update copies. All ranks call it."""
    here = [item.number for item in slices.items if item.server == transport.rank]
    own = {n: slices.rows(n) if staleness == 0 else slices.rows(n).clone() for n in here}
    times = 1 if staleness == 0 else transport.size
    updates = SlicedOptimizer(slices, optimizer, own, times=times)
    synchroniser = ServerSynchroniser(
        slices.items, transport.wire(), updates, staleness=staleness, stall=stall,
        timeout=transport.timeout, fail=transport.fail, record=slices.record(note),
    )  # fmt: skip
    for number in range(len(slices.items)):
        synchroniser.bind(number, slices.rows(number), own.get(number))
    return Homing(slices, updates, synchroniser, transport, exchange, copied=staleness != 0)


class Homing:
    """One rank's slices. All ranks make it, with a synchroniser whose items are bound.

    `copied`: homes update copies, so that parameters may differ between ranks.
    """

    def __init__(
        self,
        slices: Slices,
        updates: SlicedOptimizer,
        synchroniser: ServerSynchroniser | CollectiveSynchroniser,
        transport: Transport,
        exchange: Exchange,
        *,
        copied: bool = False,
    ) -> None:
        self.clock = 0
        self.waited = dict.fromkeys(slices.names, 0.0)  # seconds, by parameter
        self.slices, self.updates, self.synchroniser = slices, updates, synchroniser
        self._transport, self._exchange, self._copied = transport, exchange, copied
        self._due: set[int] = set()  # parameters that are under way
        transport.on_failure(synchroniser.stop)
        updates.scatter()
        updates.take_settings(1)
        synchroniser.start()
        transport.barrier()  # nobody pushes before all listen

    # -- a step ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step's first gradient is handed in: its updates have the settings of now."""
        self.clock += 1
        self.updates.take_settings(self.clock)

    def give(self, index: int, gradient: Tensor | None) -> None:
        """Hands in this rank's share of the average, which is not written any more; None: it has none."""
        with torch.no_grad():
            if gradient is None:
                part = absent_like(self.slices.parameters[index])
            else:
                # In new memory: gradients of two parameters may be views of the same.
                part = torch.div(gradient, self._transport.size).contiguous()
            for number in self.slices.numbers[index]:
                rows = self.slices.cut(part, number)
                if gradient is not None:
                    rows.view(-1)[:1].add_(0.0)  # never a negative zero
                self.synchroniser.submit(number, rows)
        self._due.add(index)

    def finish(self) -> None:
        """A step ends, all that belongs to it was given."""

    def under_way(self, index: int) -> bool:
        return index in self._due

    def wait(self, index: int) -> None:
        """Until a parameter is up to date."""
        if index not in self._due:
            return
        begin = time.perf_counter()
        for number in self.slices.numbers[index]:
            self.synchroniser.wait(number)
        self._due.discard(index)
        self.waited[self.slices.names[index]] += time.perf_counter() - begin

    def synchronize(self) -> None:
        for index in list(self._due):
            self.wait(index)
        self.synchroniser.synchronize()

    # -- between steps -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Nothing is under way anywhere, and all ranks hold what the homes hold. All ranks call it."""
        self.synchronize()
        self._transport.barrier()
        with torch.no_grad():
            for item in self.slices.items if self._copied else ():
                own, rows = self.updates.own.get(item.number), self.slices.rows(item.number)
                held = (rows if own is None else own.detach()).to("cpu", copy=True)
                if held.numel():
                    flat = held.contiguous().view(-1).view(torch.uint8)
                    self._transport.broadcast(item.server, flat).wait()
                    rows.copy_(flat.view(item.dtype).view(rows.shape))

    def collect(self) -> dict[Tensor, State]:
        """The state as the whole optimizer would have it. All ranks call it."""
        self.settle()
        return self.updates.joined(self._states())

    def _states(self) -> dict[int, State]:
        """By item, from its home."""
        return gather(self._exchange(self.updates.states()))

    def close(self) -> None:
        self.synchroniser.close()

    @property
    def log(self) -> list[UpdateEvent]:
        """Updates at this rank's homes, in their order."""
        return self.synchroniser.log

    @property
    def counters(self) -> dict[str, float]:
        """What has left this rank."""
        wire = self._transport.wire()
        c = wire.counters
        return {
            "bytes": sum(wire.sent.values()), "messages": c.messages,
            "overtaken": c.overtaken, "busy": c.busy, "longest": c.longest,
        }  # fmt: skip
