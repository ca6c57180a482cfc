"""The parameters of a rank in slices: gradients are handed in, updated rows come back.

Homes update a slice as soon as its gradients are there, beside what this rank computes. Without homes
(`p3:collective`) gradients are summed in the program's order, and this rank updates its copy of a slice
when a forward asks for it. Where an update needs all gradients (a global norm, a loss that must be finite,
an optimizer that looks at more than one element), it waits for them instead: `barrier` says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.errors import InputError
from raddle.graph.dtypes import resolve_conj_and_neg
from raddle.plans.sync import Sync
from raddle.runtime.actions import ParameterSlice
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.rank_slices import Rows
from raddle.sync.collective_synchroniser import CollectiveSynchroniser
from raddle.sync.parameter_server import Apply
from raddle.sync.server_synchroniser import ServerSynchroniser
from raddle.sync.slice_updater import Applying, needs_barrier
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_over

# Is told of a slice, of its step (from 1 on) and of the gradient of its update.
Heard = Callable[[SlotSource, int, Tensor], None]
Exchange = Callable[[object], list[object]]
logger = logging.getLogger("raddle.sync")


class Agreeing:
    """One rank's slices. `slots` hold its parameters; `start` comes when the optimizer is made."""

    def __init__(
        self, slices: Sequence[ParameterSlice], slots: Sequence[Tensor], transport: Transport, sync: Sync,
        place: torch.device, order: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.rows = Rows(slices, slots, sync, transport.rank)
        self.transport, self._place, self._order = transport, place, order
        self.heard: Heard | None = None  # is told of every update
        self.barrier = ""
        self.clock = 0  # updates that this rank has taken part in
        self._due: dict[int, list[int]] = {}  # slots that are under way, with their slices
        self._kept: dict[int, Tensor] = {}  # gradients of slots, until all their slices have left
        self._optimizer: Optimizer | None = None
        self._applying: Applying | None = None
        self.synchroniser: ServerSynchroniser | CollectiveSynchroniser | None = None

    @property
    def updated(self) -> list[tuple[SlotSource, nn.Parameter]]:
        """The slices that are updated here: what the optimizer is made of."""
        return [(self.rows.source(n), p) for n, p in self.rows.updated.items()]

    def start(self, optimizer: Optimizer | None, barrier: str = "") -> None:
        """`barrier`: why updates have to wait for all gradients; the optimizer may be another reason."""
        sync, rows, transport = self.rows.sync, self.rows, self.transport
        self._optimizer = optimizer
        made = optimizer if rows.updated else None
        own = barrier or (needs_barrier(made) if made is not None else None) or ""
        if own and not sync.synchronous:
            raise InputError(
                f"{own.rstrip('.')}, which an asynchronous server does not do: use ps."
            )

        def exchange(mine: object) -> list[object]:
            return exchange_over(transport, self._place, mine)

        if (
            sync.synchronous
        ):  # ranks without slices cannot know why others wait: the first who does says so
            self.barrier = next((str(reason) for reason in exchange(own) if reason), "")
        if self.barrier:
            logger.info("updates wait for all gradients: %s", self.barrier)
        if sync.collective:
            self.synchroniser = _summing(rows, self._order, transport, self._apply, exchange)
        else:
            self.synchroniser = _homes(rows, transport, self._apply, barrier=bool(self.barrier))
        transport.on_failure(self.synchroniser.stop)
        if made is not None and not self.barrier:
            times = {n: len(rows.slices[n].share.devices) for n in rows.updated}
            self._applying = Applying(made, rows.updated, times=None if sync.synchronous else times)
            self._applying.snapshot(1)
        self.synchroniser.start()
        transport.barrier()  # nobody pushes before all listen

    def _apply(self, number: int, clock: int, gradient: Tensor) -> None:
        assert self._applying is not None
        if self.heard is not None:
            own = self.rows.updated[number]
            self.heard(self.rows.source(number), clock, gradient.view_as(own))
        self._applying(number, clock, gradient)

    # -- a step ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step that updates begins: its updates have the optimizer's settings of now."""
        self.clock += 1
        if self._optimizer is not None:
            _step_nothing(self._optimizer)
        if self._applying is not None:
            self._applying.snapshot(self.clock)
        assert self.synchroniser is not None
        self.synchroniser.admit(self.clock)

    def give(self, slot: int, gradient: Tensor) -> None:
        """Hands in the gradient of what a slot holds; it is not written any more."""
        assert self.synchroniser is not None
        self._due[slot] = self.rows.given[slot]
        if self.rows.sync.collective:  # sums are in place, and this may be seen by others
            self._kept[slot] = gradient.detach().clone(memory_format=torch.contiguous_format)
            return
        gradient = resolve_conj_and_neg(gradient.detach()).contiguous()
        for number in self.rows.given[slot]:
            self.synchroniser.submit(number, self.rows.cut(number, gradient))

    def leave(self, number: int) -> None:
        """It is a slice's turn to be summed."""
        assert self.synchroniser is not None
        gradient = self._kept[self.rows.slices[number].slot]
        self.synchroniser.submit(number, self.rows.cut(number, gradient))

    def wait(self, slots: Sequence[int]) -> None:
        """Until the parameters in these slots are up to date."""
        if not self._due:
            return
        assert self.synchroniser is not None
        for slot in slots:
            for number in self._due.pop(slot, ()):
                self.synchroniser.wait(number)

    def finish(self, update: Callable[[], None]) -> None:
        """The end of a step: whatever cannot wait for its next use is done now."""
        assert self.synchroniser is not None
        self._kept.clear()  # slices that are under way keep what they need of it
        self.synchroniser.finish()
        if self.barrier:
            updated = self.rows.updated
            for number, gradient in self.synchroniser.sums().items():
                updated[number].grad = gradient.view_as(updated[number])
            update()
            for rows in updated.values():
                rows.grad = None
            self.synchroniser.publish()
        if not self.rows.sync.by_priority:
            self.wait(list(self._due))

    def synchronize(self) -> None:
        """All parameters are up to date, and nothing is under way; all ranks call it."""
        if self.synchroniser is not None:
            self.wait(list(self._due))
            self.synchroniser.synchronize()
            # A server that is no worker has nothing else to wait for; and where servers apply gradients as
            # they come, a rank that is behind may still send some to this one.
            if self.rows.sync.server is not None or not self.rows.sync.synchronous:
                self.transport.barrier()

    def refresh(self) -> None:
        """Homes that update copies take what the slots hold now."""
        self.rows.refresh()

    def close(self) -> None:
        if self.synchroniser is not None:
            self.synchroniser.close()

    def flush(self, seconds: float) -> None:
        """At the end: waits, but not long, until nothing of this rank or of its homes is under way.

        A rank that ends because of an error must not wait for others that wait for it.
        """
        if self.synchroniser is not None:
            self.synchroniser.drain(seconds, self.clock)


def _summing(
    rows: Rows, order: Sequence[int], transport: Transport, apply: Apply, exchange: Exchange
) -> CollectiveSynchroniser:
    """Slices without homes: summed in a static order."""
    debug = os.environ.get("RADDLE_SYNC_DEBUG", "") not in ("", "0")
    return CollectiveSynchroniser(rows.items(), order, transport, apply, exchange, debug=debug)


def _homes(rows: Rows, transport: Transport, apply: Apply, *, barrier: bool) -> ServerSynchroniser:
    """Slices with homes, which update them."""
    sync = rows.sync
    waits = sync.server is not None and sync.synchronous and not barrier
    made = ServerSynchroniser(
        rows.items(), transport.wire(), apply, staleness=sync.staleness, barrier=barrier,
        timeout=transport.timeout, admitted=0 if waits else None, fail=transport.fail,
    )  # fmt: skip
    for number, (into, copied) in rows.bound().items():
        made.bind(number, into, copied)
    return made


def _step_nothing(optimizer: Optimizer) -> None:
    """Slices are stepped one by one, by a copy; schedulers warn if the optimizer never steps itself."""
    groups = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": []} for group in groups]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups
