"""Synchronises a rank's parameters slice by slice, while the rank computes.

Gradients are submitted as soon as they are complete. With servers, the server of a slice sums its
gradients, updates it and sends the new rows back. With collective updates (sync kind `p3:collective`) there
is no server: gradients are all-reduced in the program's order, and each rank updates its own copy of a
slice when a forward waits for it.

Some updates need all gradients of a step first: clipping by the global norm, a check that the loss is
finite, an optimizer that is not elementwise. Then the rank waits at the end of the step (a barrier);
`barrier_reason` says why.

The worker of a slice is a rank that has a copy of it and submits gradients. A synchroniser (package sync/)
does the communication. `sync` is the plan's setting (package plans/sync); `sync.synchronous`: updates wait
for the gradients of all workers. The clock counts the steps with an update, from 1. An asynchronous server
does not wait for all workers: it applies each gradient when it arrives. Then workers may be some steps
apart (staleness).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence

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
from raddle.sync.item_rows import join, split
from raddle.sync.parameter_server import Apply
from raddle.sync.server_synchroniser import ServerSynchroniser
from raddle.sync.slice_updater import SliceUpdater, why_barrier
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_objects

# Called at each update of a slice with the slice, the step (counted from 1) and the summed gradient.
OnUpdate = Callable[[SlotSource, int, Tensor], None]
Exchange = Callable[[object], list[object]]  # all-gather of Python objects, one for each rank
logger = logging.getLogger("raddle.sync")


class ParameterSync:
    """Synchronises the slices of one rank. Call `start` when the optimizer exists.

    slices: all slices of the program, identified by their index; bundles: for each bundle, the indices of
    its slices, which are synchronised together; slots: tensors by slot, among them the parameters; sync:
    how the plan synchronises parameters; place: the torch device; order: numbers of bundles in the order of
    their all-reduces (p3:collective only). In the methods, `number` is the number of a bundle.
    """

    def __init__(
        self, slices: Sequence[ParameterSlice], bundles: Sequence[Sequence[int]], slots: Sequence[Tensor],
        transport: Transport, sync: Sync, place: torch.device, order: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.rank_slices = RankSlices(slices, bundles, slots, sync, transport.rank)
        self.transport, self._place, self._order = transport, place, order
        self.on_update: OnUpdate | None = None
        self.barrier_reason = ""  # why updates wait for all gradients; "": they do not
        self.clock = 0  # steps with an update that this rank has begun
        # Slot -> numbers of the bundles with its slices; removed when `wait` has seen their updates
        self._pending: dict[int, list[int]] = {}
        self._gradients: dict[int, Tensor] = {}  # p3:collective: slot -> gradient, during the step
        self._optimizer: Optimizer | None = None
        self._slice_updater: SliceUpdater | None = None
        self.synchroniser: ServerSynchroniser | CollectiveSynchroniser | None = None

    @property
    def updated(self) -> list[tuple[SlotSource, nn.Parameter]]:
        """The slices that this rank updates; they are the parameters of its optimizer."""
        return [(self.rank_slices.source_of(n), p) for n, p in self.rank_slices.updated.items()]

    def start(self, optimizer: Optimizer | None, barrier_reason: str = "") -> None:
        """Starts the synchronisation; all ranks call it. barrier_reason: why this rank needs a barrier."""
        sync, rank_slices, transport = self.rank_slices.sync, self.rank_slices, self.transport
        self._optimizer = optimizer
        # None: this rank updates nothing
        used_optimizer = optimizer if rank_slices.updated else None
        local_reason = (
            barrier_reason
            or (why_barrier(used_optimizer) if used_optimizer is not None else None)
            or ""
        )
        if local_reason and not sync.synchronous:
            raise InputError(
                "an asynchronous server cannot wait until all gradients are summed, as is needed here "
                f"({local_reason.rstrip('.')}): use ps."
            )

        def exchange(local: object) -> list[object]:
            return exchange_objects(transport, self._place, local)

        # All ranks must agree: a rank that updates no slices does not see an optimizer's reason.
        if sync.synchronous:
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
            served = rank_slices.updated_bundles()
            # Bundle -> updates in a step: an asynchronous server updates once for each worker.
            times = {n: len(rank_slices.region_of(n).devices) for n in served}
            self._slice_updater = SliceUpdater(
                used_optimizer, served, times=None if sync.synchronous else times
            )
            self._slice_updater.snapshot(1)  # notes the optimizer's settings (lr, ...) for step 1
        self.synchroniser.start()
        transport.barrier()  # all ranks listen before the first one sends

    def _apply(self, number: int, clock: int, gradient: Tensor) -> None:
        """Updates a bundle on this rank. The synchroniser calls it when the gradients are summed."""
        assert self._slice_updater is not None
        if self.on_update is not None:
            for slice_number, part in self._split(number, gradient):
                self.on_update(self.rank_slices.source_of(slice_number), clock, part)
        self._slice_updater(number, clock, gradient)

    def _split(self, number: int, gradient: Tensor) -> Iterable[tuple[int, Tensor]]:
        """Returns the slices of a bundle that this rank updates, with their gradients."""
        members = self.rank_slices.bundles[number]
        parts = split(gradient, [self.rank_slices.updated[n] for n in members])
        return zip(members, parts, strict=True)

    # -- a step ------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begins a step with an update, and notes the optimizer's settings (lr, ...) for this step."""
        self.clock += 1
        if self._optimizer is not None:
            _step_without_parameters(self._optimizer)
        if self._slice_updater is not None:
            self._slice_updater.snapshot(self.clock)
        assert self.synchroniser is not None
        self.synchroniser.admit(self.clock)  # allows the updates of this step

    def submit(self, slot: int, gradient: Tensor) -> None:
        """Submits the complete gradient of the parameter in a slot. The caller must not change it later."""
        assert self.synchroniser is not None
        slice_numbers = self.rank_slices.slices_by_slot[slot]
        self._pending[slot] = list(
            dict.fromkeys(self.rank_slices.bundle_of[n] for n in slice_numbers)
        )
        if self.rank_slices.sync.collective:  # a copy, as all-reduces work in place
            self._gradients[slot] = gradient.detach().clone(memory_format=torch.contiguous_format)
            return
        gradient = resolve_conj_and_neg(gradient.detach()).contiguous()
        for slice_number in slice_numbers:
            # (bundle, its gradient), if the gradients of all its slices are there now
            complete = self.rank_slices.gathering.add(
                slice_number, self.rank_slices.cut(slice_number, gradient)
            )
            if complete is not None:
                self.synchroniser.submit(*complete)

    def start_slice_all_reduce(self, number: int) -> None:
        """Starts the all-reduce of one bundle of submitted gradients (p3:collective only)."""
        assert self.synchroniser is not None
        parts = [
            self.rank_slices.cut(n, self._gradients[self.rank_slices.slices[n].slot])
            for n in self.rank_slices.bundles[number]
        ]
        self.synchroniser.submit(number, join(parts))

    def wait(self, slots: Sequence[int]) -> None:
        """Waits until the parameters in these slots are up to date."""
        if not self._pending:
            return
        assert self.synchroniser is not None
        for slot in slots:
            for number in self._pending.pop(slot, ()):
                self.synchroniser.wait(number)

    def finish_step(self, optimizer_step: Callable[[], None]) -> None:
        """Ends a step: if a barrier is needed, updates the parameters now.

        Then it waits until all parameters are up to date. If slices have priorities, forwards wait instead.
        """
        assert self.synchroniser is not None
        self._gradients.clear()  # all-reduces in flight keep their part alive
        self.synchroniser.finish()
        if self.barrier_reason:
            updated = self.rank_slices.updated
            for number, gradient in self.synchroniser.sums().items():
                for slice_number, part in self._split(number, gradient):
                    updated[slice_number].grad = part
            optimizer_step()
            for rows in updated.values():
                rows.grad = None
            self.synchroniser.publish()  # servers send the updated rows to the workers
        if not self.rank_slices.sync.by_priority:
            self.wait(list(self._pending))

    def synchronize(self) -> None:
        """Waits until all parameters are up to date and no message is in transit; all ranks call it."""
        if self.synchroniser is not None:
            self.wait(list(self._pending))
            self.synchroniser.synchronize()
            # A server that is not a worker has no slices to wait for. And asynchronous servers may still
            # receive gradients from slower ranks.
            if self.rank_slices.sync.server is not None or not self.rank_slices.sync.synchronous:
                self.transport.barrier()

    def refresh(self) -> None:
        """Copies the parameters in the slots to the server's copies; call it after a state was loaded."""
        self.rank_slices.refresh_server_copies()

    def close(self) -> None:
        if self.synchroniser is not None:
            self.synchroniser.close()

    def flush(self, seconds: float) -> None:
        """Waits at most `seconds` until this rank has nothing in transit, also as a server.

        Call it before `close`. The limit matters after an error: other ranks may be waiting for this one.
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
    """Returns a synchroniser that all-reduces slices in a static order.

    With RADDLE_SYNC_DEBUG=1, all-reduces start only at the end of a step, after all ranks have compared
    their lists.
    """
    debug = os.environ.get("RADDLE_SYNC_DEBUG", "") not in ("", "0")
    return CollectiveSynchroniser(
        rank_slices.items(), order, transport, apply, exchange, debug=debug
    )


def _make_server_sync(
    rank_slices: RankSlices, transport: Transport, apply: Apply, *, barrier: bool
) -> ServerSynchroniser:
    """Returns a synchroniser that sends gradients to servers, and serves the slices of this rank."""
    sync = rank_slices.sync
    # sync.server: the one device that updates all parameters, if the plan names it; it may be no worker.
    # A server that is not a worker may get a gradient before it begins the step, with the optimizer's
    # settings of that step still unknown; `begin_step` admits the updates of a step.
    limits_updates = sync.server is not None and sync.synchronous and not barrier
    # wire: sends slices by priority; admitted: the last step whose updates may happen (None: no limit)
    synchroniser = ServerSynchroniser(
        rank_slices.items(), transport.wire(), apply, staleness=sync.staleness, barrier=barrier,
        timeout=transport.timeout, admitted=0 if limits_updates else None, fail=transport.fail,
    )  # fmt: skip
    # into: where updated rows are put; copied: the copy that an asynchronous server updates
    for number, (into, copied) in rank_slices.bindings().items():
        synchroniser.bind(number, into, copied)
    return synchroniser


def _step_without_parameters(optimizer: Optimizer) -> None:
    """Calls optimizer.step() without parameters: learning rate schedulers warn if it is never called.

    The slices themselves are updated one by one, by a copy of the optimizer.
    """
    groups = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": []} for group in groups]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups
