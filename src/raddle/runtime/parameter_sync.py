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
from raddle.runtime.rank_slices import RankSlices
from raddle.sync.collective_synchroniser import CollectiveSynchroniser
from raddle.sync.parameter_server import Apply
from raddle.sync.server_synchroniser import ServerSynchroniser
from raddle.sync.slice_updater import SliceUpdater, why_barrier
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_objects

# Is told of a slice, of its step (from 1 on) and of the gradient of its update.
OnUpdate = Callable[[SlotSource, int, Tensor], None]
Exchange = Callable[[object], list[object]]
logger = logging.getLogger("raddle.sync")


class ParameterSync:
    """One rank's slices. `slots` hold its parameters; `start` comes when the optimizer is made."""

    def __init__(
        self, slices: Sequence[ParameterSlice], slots: Sequence[Tensor], transport: Transport, sync: Sync,
        place: torch.device, order: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.rank_slices = RankSlices(slices, slots, sync, transport.rank)
        self.transport, self._place, self._order = transport, place, order
        self.on_update: OnUpdate | None = None  # is told of every update
        self.barrier_reason = ""
        self.clock = 0  # updates that this rank has taken part in
        self._pending_slices: dict[
            int, list[int]
        ] = {}  # slots that are under way, with their slices
        self._gradients: dict[
            int, Tensor
        ] = {}  # gradients of slots, until all their slices have left
        self._optimizer: Optimizer | None = None
        self._slice_updater: SliceUpdater | None = None
        self.synchroniser: ServerSynchroniser | CollectiveSynchroniser | None = None

    @property
    def updated(self) -> list[tuple[SlotSource, nn.Parameter]]:
        """The slices that are updated here: what the optimizer is made of."""
        return [(self.rank_slices.source_of(n), p) for n, p in self.rank_slices.updated.items()]

    def start(self, optimizer: Optimizer | None, barrier_reason: str = "") -> None:
        """`barrier`: why updates have to wait for all gradients; the optimizer may be another reason."""
        sync, rank_slices, transport = self.rank_slices.sync, self.rank_slices, self.transport
        self._optimizer = optimizer
        used_optimizer = optimizer if rank_slices.updated else None
        local_reason = (
            barrier_reason
            or (why_barrier(used_optimizer) if used_optimizer is not None else None)
            or ""
        )
        if local_reason and not sync.synchronous:
            raise InputError(
                f"{local_reason.rstrip('.')}, which an asynchronous server does not do: use ps."
            )

        def exchange(mine: object) -> list[object]:
            return exchange_objects(transport, self._place, mine)

        if (
            sync.synchronous
        ):  # ranks without slices cannot know why others wait: the first who does says so
            self.barrier_reason = next(
                (str(reason) for reason in exchange(local_reason) if reason), ""
            )
        if self.barrier_reason:
            logger.info("updates wait for all gradients: %s", self.barrier_reason)
        if sync.collective:
            self.synchroniser = _make_collective_sync(
                rank_slices, self._order, transport, self._apply, exchange
            )
        else:
            self.synchroniser = _make_server_sync(
                rank_slices, transport, self._apply, barrier=bool(self.barrier_reason)
            )
        transport.on_failure(self.synchroniser.stop)
        if used_optimizer is not None and not self.barrier_reason:
            times = {n: len(rank_slices.slices[n].region.devices) for n in rank_slices.updated}
            self._slice_updater = SliceUpdater(
                used_optimizer, rank_slices.updated, times=None if sync.synchronous else times
            )
            self._slice_updater.snapshot(1)
        self.synchroniser.start()
        transport.barrier()  # nobody pushes before all listen

    def _apply(self, number: int, clock: int, gradient: Tensor) -> None:
        assert self._slice_updater is not None
        if self.on_update is not None:
            parameter = self.rank_slices.updated[number]
            self.on_update(self.rank_slices.source_of(number), clock, gradient.view_as(parameter))
        self._slice_updater(number, clock, gradient)

    # -- a step ------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step that updates begins: its updates have the optimizer's settings of now."""
        self.clock += 1
        if self._optimizer is not None:
            _step_without_parameters(self._optimizer)
        if self._slice_updater is not None:
            self._slice_updater.snapshot(self.clock)
        assert self.synchroniser is not None
        self.synchroniser.admit(self.clock)

    def submit(self, slot: int, gradient: Tensor) -> None:
        """Hands in the gradient of what a slot holds; it is not written any more."""
        assert self.synchroniser is not None
        self._pending_slices[slot] = self.rank_slices.slices_by_slot[slot]
        if self.rank_slices.sync.collective:  # sums are in place, and this may be seen by others
            self._gradients[slot] = gradient.detach().clone(memory_format=torch.contiguous_format)
            return
        gradient = resolve_conj_and_neg(gradient.detach()).contiguous()
        for number in self.rank_slices.slices_by_slot[slot]:
            self.synchroniser.submit(number, self.rank_slices.cut(number, gradient))

    def start_slice_all_reduce(self, number: int) -> None:
        """It is a slice's turn to be summed."""
        assert self.synchroniser is not None
        gradient = self._gradients[self.rank_slices.slices[number].slot]
        self.synchroniser.submit(number, self.rank_slices.cut(number, gradient))

    def wait(self, slots: Sequence[int]) -> None:
        """Until the parameters in these slots are up to date."""
        if not self._pending_slices:
            return
        assert self.synchroniser is not None
        for slot in slots:
            for number in self._pending_slices.pop(slot, ()):
                self.synchroniser.wait(number)

    def finish_step(self, optimizer_step: Callable[[], None]) -> None:
        """The end of a step: whatever cannot wait for its next use is done now."""
        assert self.synchroniser is not None
        self._gradients.clear()  # slices that are under way keep what they need of it
        self.synchroniser.finish()
        if self.barrier_reason:
            updated = self.rank_slices.updated
            for number, gradient in self.synchroniser.sums().items():
                updated[number].grad = gradient.view_as(updated[number])
            optimizer_step()
            for rows in updated.values():
                rows.grad = None
            self.synchroniser.publish()
        if not self.rank_slices.sync.by_priority:
            self.wait(list(self._pending_slices))

    def synchronize(self) -> None:
        """All parameters are up to date, and nothing is under way; all ranks call it."""
        if self.synchroniser is not None:
            self.wait(list(self._pending_slices))
            self.synchroniser.synchronize()
            # A server that is no worker has nothing else to wait for; and where servers apply gradients as
            # they come, a rank that is behind may still send some to this one.
            if self.rank_slices.sync.server is not None or not self.rank_slices.sync.synchronous:
                self.transport.barrier()

    def refresh(self) -> None:
        """Homes that update copies take what the slots hold now."""
        self.rank_slices.refresh_server_copies()

    def close(self) -> None:
        if self.synchroniser is not None:
            self.synchroniser.close()

    def flush(self, seconds: float) -> None:
        """At the end: waits, but not long, until nothing of this rank or of its homes is under way.

        A rank that ends because of an error must not wait for others that wait for it.
        """
        if self.synchroniser is not None:
            self.synchroniser.drain(seconds, self.clock)


def _make_collective_sync(
    rank_slices: RankSlices,
    order: Sequence[int],
    transport: Transport,
    apply: Apply,
    exchange: Exchange,
) -> CollectiveSynchroniser:
    """Slices without homes: summed in a static order."""
    debug = os.environ.get("RADDLE_SYNC_DEBUG", "") not in ("", "0")
    return CollectiveSynchroniser(
        rank_slices.items(), order, transport, apply, exchange, debug=debug
    )


def _make_server_sync(
    rank_slices: RankSlices, transport: Transport, apply: Apply, *, barrier: bool
) -> ServerSynchroniser:
    """Slices with homes, which update them."""
    sync = rank_slices.sync
    limits_updates = sync.server is not None and sync.synchronous and not barrier
    synchroniser = ServerSynchroniser(
        rank_slices.items(), transport.wire(), apply, staleness=sync.staleness, barrier=barrier,
        timeout=transport.timeout, admitted=0 if limits_updates else None, fail=transport.fail,
    )  # fmt: skip
    for number, (into, copied) in rank_slices.bindings().items():
        synchroniser.bind(number, into, copied)
    return synchroniser


def _step_without_parameters(optimizer: Optimizer) -> None:
    """Slices are stepped one by one, by a copy; schedulers warn if the optimizer never steps itself."""
    groups = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": []} for group in groups]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups
