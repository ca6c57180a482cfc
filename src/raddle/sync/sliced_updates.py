"""Updates the parameters of a wrapped optimizer (sync.Optimizer) slice by slice.

The caller submits gradients, and waits until parameters are updated. SlicedUpdates works with
parameters (by index) and translates to items (slices or bundles) for a synchroniser: ServerSynchroniser
here, CollectiveSynchroniser in collective_updates.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from raddle.sync.collective_synchroniser import CollectiveSynchroniser
from raddle.sync.item import Item, UpdateEvent
from raddle.sync.optimizer_state import OptimizerState, merge_states
from raddle.sync.parameter_slices import ParameterSlices, RecordSpan
from raddle.sync.server_synchroniser import ServerSynchroniser
from raddle.sync.sliced_optimizer import SlicedOptimizer, absent_like
from raddle.transport.base import Transport

Exchange = Callable[[Any], list[Any]]  # gathers an object from every rank


def make_server_updates(
    slices: ParameterSlices,
    optimizer: Optimizer,
    staleness: int | None,
    transport: Transport,
    exchange: Exchange,
    *,
    stall: float = 10.0,
    record_span: RecordSpan | None = None,
) -> SlicedUpdates:
    """Returns new SlicedUpdates with servers. All ranks call it.

    staleness: how many steps a rank may be ahead of the slowest one; 0: synchronous; None: any number.
    stall: seconds of waiting until a warning. record_span: adds a bar to the Chrome trace.
    With staleness, a server updates a copy of the rows, not the model's parameter (stale_server.py).
    """
    served = [item.number for item in slices.items if item.server == transport.rank]
    rows_by_item = {
        n: [rows if staleness == 0 else rows.clone() for rows in slices.item_rows(n)]
        for n in served
    }
    times = 1 if staleness == 0 else transport.size  # updates of an item in a step
    sliced_optimizer = SlicedOptimizer(slices, optimizer, rows_by_item, times=times)
    synchroniser = ServerSynchroniser(
        slices.items, transport.wire(), sliced_optimizer, staleness=staleness, stall=stall,
        timeout=transport.timeout, fail=transport.fail, record=slices.record_by_item(record_span),
    )  # fmt: skip
    for number in range(len(slices.items)):
        synchroniser.bind(number, slices.item_rows(number), rows_by_item.get(number))
    return SlicedUpdates(
        slices, sliced_optimizer, synchroniser, transport, exchange, server_copies=staleness != 0
    )


class SlicedUpdates:
    """Updates the slices of one rank. All ranks make this object, after `bind` of the synchroniser.

    server_copies: servers update copies of the rows, so parameters may differ between ranks.
    """

    def __init__(
        self,
        slices: ParameterSlices,
        sliced_optimizer: SlicedOptimizer,
        synchroniser: ServerSynchroniser | CollectiveSynchroniser,
        transport: Transport,
        exchange: Exchange,
        *,
        server_copies: bool = False,
    ) -> None:
        self.clock = 0  # steps that have begun
        self.waited = dict.fromkeys(slices.names, 0.0)  # seconds, by parameter
        self.slices, self.sliced_optimizer, self.synchroniser = (
            slices,
            sliced_optimizer,
            synchroniser,
        )
        self._transport, self._exchange, self._server_copies = transport, exchange, server_copies
        self._pending: set[int] = set()  # parameters whose updates are not back yet
        self._gathering = slices.gathering()
        transport.on_failure(synchroniser.stop)
        sliced_optimizer.scatter_state()
        sliced_optimizer.snapshot_settings(1)
        synchroniser.start()
        transport.barrier()  # no rank sends before all receive

    # -- a step ------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begins a step, with the optimizer's present settings. Called before its first gradient."""
        self.clock += 1
        self.sliced_optimizer.snapshot_settings(self.clock)

    def submit(self, index: int, gradient: Tensor | None) -> None:
        """Submits this rank's gradient, divided by the number of ranks; None: it has no gradient."""
        with torch.no_grad():
            if gradient is None:
                part = absent_like(self.slices.parameters[index])
            else:
                # In new memory: gradients of two parameters may be views of one tensor.
                part = torch.div(gradient, self._transport.size).contiguous()
            for number in self.slices.slices_of[index]:
                rows = self.slices.select_rows(part, number)
                if gradient is not None:
                    # -0.0 as the first element means that no rank has a gradient: it becomes 0.0.
                    rows.view(-1)[:1].add_(0.0)
                if (complete := self._gathering.add(number, rows)) is not None:
                    self.synchroniser.submit(*complete)
        self._pending.add(index)

    def finish_step(self) -> None:
        """Ends a step, after all gradients were submitted. With servers there is nothing to do."""

    def is_pending(self, index: int) -> bool:
        """Returns whether a parameter has a submitted gradient whose update is not back yet."""
        return index in self._pending

    def wait(self, index: int) -> None:
        """Waits until a parameter is up to date, except if its items lack gradients of this step."""
        items = self.slices.item_numbers[index]
        if index not in self._pending or any(map(self._gathering.is_waiting, items)):
            return
        begin = time.perf_counter()
        for number in items:
            self.synchroniser.wait(number)
        self._pending.discard(index)
        self.waited[self.slices.names[index]] += time.perf_counter() - begin

    def synchronize(self) -> None:
        """Waits until this rank's parameters are up to date and all its messages are sent."""
        for index in list(self._pending):
            self.wait(index)
        self.synchroniser.synchronize()

    # -- between steps -----------------------------------------------------------------------------

    def synchronize_ranks(self) -> None:
        """Waits for all updates; then all ranks have the parameters of the servers. All ranks call it."""
        self.synchronize()
        self._transport.barrier()
        with torch.no_grad():
            for number, item in self._items_by_slice() if self._server_copies else ():
                server_rows, rows = (
                    self.sliced_optimizer.parameters.get(number),
                    self.slices.rows(number),
                )
                payload = (rows if server_rows is None else server_rows.detach()).to(
                    "cpu", copy=True
                )
                if payload.numel():
                    flat = payload.contiguous().view(-1).view(torch.uint8)
                    self._transport.broadcast(item.server, flat).wait()
                    rows.copy_(flat.view(item.dtype).view(rows.shape))

    def _items_by_slice(self) -> Iterator[tuple[int, Item]]:
        """Yields the number of each slice, with the item that it belongs to."""
        for item in self.slices.items:
            for number in self.slices.slices_of_item[item.number]:
                yield number, item

    def gather_state(self) -> dict[Tensor, OptimizerState]:
        """Returns the state of whole parameters, as the plain optimizer has it. All ranks call it."""
        self.synchronize_ranks()
        return self.sliced_optimizer.join_states(self._gather_states())

    def _gather_states(self) -> dict[int, OptimizerState]:
        """Returns the state of every slice, from its server."""
        return merge_states(self._exchange(self.sliced_optimizer.states()))

    def close(self) -> None:
        self.synchroniser.close()

    @property
    def log(self) -> list[UpdateEvent]:
        """The updates that this rank has made as a server, in their order."""
        return self.synchroniser.log

    @property
    def counters(self) -> dict[str, float]:
        """Counters of the messages that this rank has sent (Counters in transport/wire.py)."""
        wire = self._transport.wire()
        c = wire.counters
        return {
            "bytes": sum(wire.sent.values()), "messages": c.messages,
            "overtaken": c.overtaken, "busy": c.busy, "longest": c.longest,
        }  # fmt: skip
