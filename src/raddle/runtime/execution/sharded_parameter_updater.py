"""The parameter updater for sharded parameters (ZeRO): each rank updates its shard of every parameter.

The gradients of a block are packed into one flat buffer and reduce-scattered; the optimizer updates the
shards at the end of the step; the parameters of a block are gathered in one flat buffer. With ZeRO-2 this
happens after the update, and the next forward waits for it; with ZeRO-3 before each use. If shards have
replicas on other ranks (HSDP), the sums of a block are all-reduced over them after its reduce-scatter. A
block is some operators whose parameters share a buffer; ShardedBlock (actions.py) has a picture of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from raddle.program.step_script import MOST_SCATTERS
from raddle.runtime.actions import (
    Call,
    Forward,
    ShardedBlock,
    ShardView,
    StartGather,
    StartReduceScatter,
    StartReplicaSum,
    UpdateParameters,
)
from raddle.runtime.execution.master_weights import MasterWeights
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.execution.store import Store
from raddle.transport.base import Pending, Transport


class ShardedParameterUpdater(ParameterUpdater):
    """The gradients, shards and gathers of one rank's parameters.

    updated_slots: of shards, and of parameters that no other rank has. views: ZeRO-2's shards, which are
    views of parameters. zero3: whether parameters are gathered before each use.
    """

    def __init__(
        self, store: Store, transport: Transport, updated_slots: Sequence[int],
        blocks: Sequence[ShardedBlock], views: Sequence[ShardView], *, zero3: bool,
    ) -> None:  # fmt: skip
        super().__init__(store, transport, updated_slots)
        self.blocks, self.zero3 = blocks, zero3
        self.masters = MasterWeights(store, views)
        self._updating = True
        # Block that was reduce-scattered in this step -> the buffer that receives the sums of the shards
        self._sums: dict[int, Tensor] = {}
        # (block, its reduce-scatter) of those in flight, which keep full buffers in memory
        self._pending_scatters: deque[tuple[int, Pending]] = deque()
        self._pending_replica_sums: list[Pending] = []
        # Slot -> the gather in flight that fills it. A gather that fills no slot here has a negative key:
        # -1 minus the number of its block.
        self._gathers: dict[int, _PendingGather] = {}

    def load(self, originals: Mapping[int, Tensor]) -> None:
        """Makes ZeRO-2's shards, which the optimizer updates; called when parameters are in their slots.

        A shard is a view of the parameter or, if the parameter is in a narrower dtype than the module's, a
        tensor of its own in the module's dtype: the master weights.
        """
        slots = self.store.slots
        for view in self.masters.shards:
            original = originals.get(view.parameter_slot)
            slots[view.shard.slot] = nn.Parameter(
                slots[view.parameter_slot].detach()[view.rows]
                if original is None
                else original.detach()[view.rows].clone()
            )
        # of parameters that no other rank has
        self.masters.make(self.updated_slots, originals)

    def begin(self, *, updating: bool) -> None:
        self._updating = updating

    def end_step(self, step: int) -> None:
        if self.zero3:  # wait for gathers that no call of this rank has waited for
            self.synchronize()

    def weights_for(self, action: Forward) -> list[Tensor]:
        self.await_weights(action.call)
        return super().weights_for(action)

    def await_weights(self, call: Call) -> None:
        """Waits until the parameters that a call uses are gathered."""
        if self._gathers:
            for slot in call.weights:
                if slot in self._gathers:
                    self._finish(self._gathers[slot])

    def synchronize(self) -> None:
        """Waits for all gathers that have started."""
        while self._gathers:
            self._finish(next(iter(self._gathers.values())))

    @property
    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            StartReduceScatter: self.start_reduce_scatter,
            StartReplicaSum: self.start_replica_sum,
            StartGather: self.start_gather,
            UpdateParameters: self.update_parameters,
        }

    def start_reduce_scatter(self, action: StartReduceScatter) -> None:
        """Packs the gradients of a block and starts to sum them; a missing gradient counts as zero."""
        block, store = self.blocks[action.block], self.store
        full = self._new_buffer(block, len(block.devices), block.reduce_dtype)
        parts = full.view(len(block.devices), -1)  # one row for each device
        for region in block.regions:
            gradient = store.grads[region.slot]
            shards = parts[:, region.offset : region.offset + region.shard_elements]
            if gradient is None:
                shards.zero_()
            else:
                _write_parts(shards, gradient)
            store.clear_gradient(region.slot)
        shard = self._new_buffer(block, 1, block.reduce_dtype)
        # MOST_SCATTERS may be in flight at once, as each keeps the gradients of its block in memory.
        while len(self._pending_scatters) >= MOST_SCATTERS:
            self._await_oldest_scatter()
        pending = self.transport.shards.reduce_scatter(
            block.devices, action.tag, full, shard, action.label
        )
        self._pending_scatters.append((action.block, pending))
        self._sums[action.block] = shard

    def start_replica_sum(self, action: StartReplicaSum) -> None:
        """Waits for the reduce-scatter of a block, and starts to sum its shards with their replicas."""
        while any(block == action.block for block, _ in self._pending_scatters):
            self._await_oldest_scatter()
        replicas, shard = self.blocks[action.block].replicas, self._sums[action.block]
        self._pending_replica_sums.append(
            self.transport.all_reduce(replicas, action.tag, shard, action.label)
        )

    def _await_oldest_scatter(self) -> None:
        """Waits for the reduce-scatter that started first."""
        _, pending = self._pending_scatters.popleft()
        pending.wait()

    def start_gather(self, action: StartGather) -> None:
        """Packs the shards of a block, and starts to gather them.

        With ZeRO-2 there is nothing to gather in a run without an update.
        """
        if not (self.zero3 or self._updating):
            return
        block, slots = self.blocks[action.block], self.store.slots
        shard = self._new_buffer(block, 1, block.gather_dtype)
        for region in block.regions:
            if region.shard_slot >= 0:  # the assignment casts to the dtype of the gather
                rows = slots[region.shard_slot].detach().reshape(-1)
                shard[region.offset : region.offset + rows.numel()] = rows
        full = self._new_buffer(block, len(block.devices), block.gather_dtype)
        pending = self.transport.shards.all_gather(
            block.devices, action.tag, shard, full, action.label
        )
        gather = _PendingGather(block, pending, full, action.slots)
        for slot in action.slots or (-1 - action.block,):
            self._gathers[slot] = gather

    def update_parameters(self, action: UpdateParameters) -> None:
        """Waits for the sums, then lets the optimizer update the shards."""
        store = self.store
        while self._pending_scatters:
            self._await_oldest_scatter()
        for pending in self._pending_replica_sums:
            pending.wait()
        self._pending_replica_sums.clear()
        gradients: dict[int, Tensor] = {}  # by slot
        for number, sums in self._sums.items():
            for region in self.blocks[number].regions:
                if region.shard_slot >= 0:
                    shard = store.slots[region.shard_slot]
                    rows = sums[region.offset : region.offset + shard.numel()]
                    gradients[region.shard_slot] = rows.view_as(shard)
        self._sums.clear()
        for slot in self.updated_slots:
            if slot not in gradients:  # no other rank has it, or no operator reads it
                gradient = store.grads[slot]
                gradients[slot] = (
                    torch.zeros_like(store.slots[slot]) if gradient is None else gradient
                )
        self.masters.update(
            self.updated_slots, [gradients[s] for s in self.updated_slots], self.optimizer_step
        )
        for slot in self.updated_slots:
            store.clear_gradient(slot)

    def _finish(self, gather: _PendingGather) -> None:
        """Waits for a gather, and writes the parameters into their slots."""
        gather.pending.wait()
        block, store = gather.block, self.store
        parts = gather.full.view(len(block.devices), -1)
        with torch.no_grad():
            for region in block.regions:
                if region.slot in gather.slots:
                    # ZeRO-3: the full parameter has memory only while it is used, so it is allocated
                    # here. ZeRO-2: the parameter in the slot is overwritten.
                    is_temporary = region.slot in store.gathered.by_slot
                    target = (
                        store.gathered.allocate(region.slot)
                        if is_temporary
                        else store.slots[region.slot].data
                    )
                    _read_parts(
                        parts[:, region.offset : region.offset + region.shard_elements], target
                    )
        for slot in [s for s, pending in self._gathers.items() if pending is gather]:
            del self._gathers[slot]

    def _new_buffer(self, block: ShardedBlock, parts: int, dtype: torch.dtype) -> Tensor:
        """Returns a flat buffer for so many parts of a block. It is zero, as padding is sent too."""
        return torch.zeros(parts * block.shard_elements, dtype=dtype, device=self.store.place)


class _PendingGather:
    """A gather in flight: its buffer, and the slots into which this rank writes the parameters."""

    def __init__(
        self, block: ShardedBlock, pending: Pending, full: Tensor, slots: tuple[int, ...]
    ) -> None:
        self.block, self.pending, self.full, self.slots = block, pending, full, slots


def _write_parts(parts: Tensor, source: Tensor) -> None:
    """Writes a tensor into the shards of a buffer: row k of `parts` gets the k-th piece of the tensor.

    All pieces have the size of a row; the last ones may be shorter or empty.
    """
    flat, (_, size) = source.detach().reshape(-1), parts.shape
    full_rows = flat.numel() // size if size else 0
    parts[:full_rows].copy_(flat[: full_rows * size].view(full_rows, size))
    if full_rows * size < flat.numel():
        parts[full_rows, : flat.numel() - full_rows * size] = flat[full_rows * size :]


def _read_parts(parts: Tensor, target: Tensor) -> None:
    """Writes the pieces in the shards of a buffer into a tensor: the inverse of `_write_parts`."""
    if not target.is_contiguous():
        target.copy_(parts.reshape(-1)[: prod(target.shape)].view(target.shape))
        return
    flat, (_, size) = target.view(-1), parts.shape
    full_rows = flat.numel() // size if size else 0
    flat[: full_rows * size].view(full_rows, size).copy_(parts[:full_rows])
    if full_rows * size < flat.numel():
        flat[full_rows * size :] = parts[full_rows, : flat.numel() - full_rows * size]
