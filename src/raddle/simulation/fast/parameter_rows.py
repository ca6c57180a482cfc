"""Builds the rows of a parameter: the memory that it takes on each device, and how it is synchronised.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

A sync unit is a parameter or a bundle of slices that is synchronised at once. Its row has the slots of its
messages and updates (arrays.py: columns of Arena.sync_units). A region is a box of a parameter with the
devices that hold it (program.ParameterRegion); a slice is a region too. Its updaters are its server or, if
it has none (server -1), all holders. A bundle is slices that are synchronised together. Rows go into the
store (store.py); the methods return their slots (first row, number of rows).
"""

# p: parameter, d: device, s: region or slice (in messages: source), t: target, r: reader

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from raddle.graph.box import Box
from raddle.graph.graph import Graph, Value
from raddle.plans.optimizers import optimizer_info
from raddle.plans.plan import Plan
from raddle.program.bundle import Bundle
from raddle.program.collective_kind import Collective
from raddle.program.parameter_region import ParameterRegion
from raddle.program.parameter_regions import parameter_regions, sharded_in_groups
from raddle.program.program import Message, reduced_element_bytes, update_bytes, updated_dtype
from raddle.program.sync_instructions import bundles_by_holder
from raddle.simulation.fast.arrays import BUNDLED_FIRST, SYNC_COLUMNS
from raddle.simulation.fast.cluster_arrays import ClusterArrays
from raddle.simulation.fast.store import NOTHING, RowStore, Slot
from raddle.simulation.fast.tilings import Reader

Array = np.ndarray


class ParameterPlacement(NamedTuple):
    """Where a parameter is held."""

    regions: tuple[ParameterRegion, ...]  # which devices hold which part of it
    memory_slot: Slot  # rows (device, bytes)
    sync_slot: Slot  # its row of Arena.sync_units; empty if it is cut into slices


class ParameterRows:
    """Rows of the parameters of a plan on a cluster."""

    def __init__(self, graph: Graph, cluster: ClusterArrays, plan: Plan) -> None:
        self.graph, self.cluster, self.plan, self.sync = graph, cluster, plan, plan.parsed_sync
        self.optimizer = optimizer_info(plan.optimizer)

    def placement(
        self, store: RowStore, value: Value, users: Sequence[Reader], block: int, *, trained: bool
    ) -> ParameterPlacement:
        """Returns where a parameter is held if `users` read it.

        value: the parameter; block: the number of its block, or 0; trained: whether it has a gradient.
        """
        used = [(r.tiling.number, r.operand) for r in users]
        # The steps of a recurrent network read a weight in the same way; one of them is enough.
        distinct = dict(zip(used, users, strict=True))
        dtypes = value.dtype, updated_dtype(self.graph, value.name)
        key = ("held", value.shape, dtypes, block, trained, *used)
        return store.cached(
            key,
            lambda: self._build_placement(
                store, value, list(distinct.values()), block, trained=trained
            ),
        )

    def _build_placement(
        self, store: RowStore, value: Value, users: Sequence[Reader], block: int, *, trained: bool
    ) -> ParameterPlacement:
        """Computes which devices hold which regions, and adds the rows."""
        by_device: dict[int, dict[Box, None]] = {}  # by device: the boxes that it reads, in order
        for r in users:
            for d, box in zip(r.tiling.tiling.devices, _tile_regions(r), strict=True):
                boxes = by_device.setdefault(d, {})
                if box is not None:
                    boxes.setdefault(box)
        regions = parameter_regions(
            value.shape, {d: list(b) for d, b in by_device.items()}, self.plan
        )
        if trained:
            regions = sharded_in_groups(regions, self.plan)
        sizes = np.zeros(self.cluster.count, np.int64)
        for s in regions:
            sizes[list(s.devices)] += self._held_bytes(value, s)
        holders = np.flatnonzero(sizes)
        slot = store.sizes.add(np.stack([holders, sizes[holders]], axis=1))
        if self.sync.sliced:
            return ParameterPlacement(regions, slot, NOTHING)
        return ParameterPlacement(
            regions, slot,
            store.sync_units.add(np.array([self._sync_row(store, value, regions, block)])),
        )  # fmt: skip

    def _held_bytes(self, value: Value, region: ParameterRegion) -> int:
        """Returns the bytes that a holder of a region of a parameter keeps in memory.

        These are the parameter, its gradient (not with shards), master weights and optimizer state.
        """
        updated, held = updated_dtype(self.graph, value.name), value.dtype
        if not self.sync.shards:
            states = self.optimizer.state_elements + (held != updated)
            return region.box.volume * (2 * held.itemsize + states * updated.itemsize)
        held = self.plan.parsed_precision.gather_dtype(held)
        separate = self.sync.zero3 or held != updated  # the shard is a tensor of its own
        shard_bytes = region.elements_per_shard * updated.itemsize
        parameter_bytes = 0 if self.sync.zero3 else region.box.volume * held.itemsize
        return parameter_bytes + (self.optimizer.state_elements + separate) * shard_bytes

    def bundle_rows(
        self, store: RowStore, value: Value, bundles: tuple[Bundle, ...],
        parameter_number: Mapping[str, int],
    ) -> Slot:  # fmt: skip
        """Returns the slot of the bundles' rows of sync_units; value: the first parameter of all of them.

        If updates are asynchronous, each holder of a bundle is synchronised by itself and has its own row.
        """
        key = ("bundles", value.dtype, updated_dtype(self.graph, value.name), bundles)

        def build() -> Slot:
            rows = []
            # The bundles, or with asynchronous updates one for each holder of each bundle.
            for bundle in bundles_by_holder(bundles, self.sync):
                members = np.array([[parameter_number[name]] for name in bundle.parameters])
                row = self._sync_row(store, value, bundle.slices)
                rows.append([*row[:BUNDLED_FIRST], *store.members.add(members)])
            return store.sync_units.add(np.array(rows, np.int64).reshape(len(rows), SYNC_COLUMNS))

        return store.cached(key, build)

    def _sync_row(
        self, store: RowStore, value: Value, regions: Sequence[ParameterRegion], block: int = 0
    ) -> list[int]:
        """Returns a row of sync_units (its columns: arrays.py) for regions that are synchronised together.

        block: with shards, the number of the block of the parameter.
        """
        element_bytes, cluster = value.dtype.itemsize, self.cluster
        # By region, the bytes that the optimizer reads and writes.
        per_element = update_bytes(self.plan, self.graph, value.name)
        passes = [self._updated(s) * per_element for s in regions]
        updaters = [s.updaters for s in regions]
        update = store.computes.add(
            cluster.memory_pass_rows(updaters, passes, cluster.update_rates)
        )
        to_sync = [s for s in regions if s.needs_sync]
        updater_holds = any(s.server < 0 or s.server in s.devices for s in regions)
        # rings: the numbers of the sets of rings (-1: none), and the first row of amounts
        rings, push, pull = (-1, -1, -1, 0), NOTHING, NOTHING
        if self.sync.shards:
            if to_sync:
                rings = self._shard_rings(store, [(s, value.dtype) for s in to_sync], block)
        elif self.sync.has_servers:
            push = self._message_rows(
                store, [(d, s.server, s) for s in to_sync for d in s.devices], element_bytes
            )
            pull = self._message_rows(
                store, [(s.server, d, s) for s in to_sync for d in s.devices], element_bytes
            )
        elif to_sync:
            elements: dict[tuple[int, ...], int] = {}  # by ring (a tuple of devices)
            for s in to_sync:
                elements[s.devices] = elements.get(s.devices, 0) + s.box.volume
            volumes = np.array(list(elements.values()))
            # Gradients may be compressed to 16 bits while they are all-reduced.
            summed = volumes * reduced_element_bytes(self.plan, value.dtype)
            in_memory, gathered = volumes * element_bytes, np.zeros_like(volumes)
            row, _ = store.amounts.add(np.stack([summed, in_memory, gathered], axis=1))
            rings = (cluster.rings.set_number(tuple(elements)), -1, -1, row)
        return [*push, *update, *pull, *rings, int(bool(to_sync)), int(updater_holds), *NOTHING]

    def _message_rows(
        self,
        store: RowStore,
        transfers: Sequence[tuple[int, int, ParameterRegion]],
        element_bytes: int,
    ) -> Slot:
        """Adds a message for each pair of devices; returns the slot.

        transfers: (source, target, region).
        """
        volumes: dict[tuple[int, int], int] = {}
        for source, target, region in transfers:
            if source != target:
                volumes[source, target] = volumes.get((source, target), 0) + region.box.volume
        sent = [(Message(s, t, ()), n * element_bytes) for (s, t), n in volumes.items()]
        return store.messages.add(self.cluster.ordered_message_rows(sent, sliced=self.sync.sliced))

    def _updated(self, region: ParameterRegion) -> int:
        """Returns elements of a region that each updater updates, as Program.updated_elements."""
        return region.elements_per_shard if self.sync.shards else region.box.volume

    def _shard_rings(
        self, store: RowStore, regions: Sequence[tuple[ParameterRegion, torch.dtype]], block: int
    ) -> tuple[int, int, int, int]:
        """Numbers the rings of regions with shards in a block; regions: (region, dtype of its parameter).

        Returns the set of rings that reduce-scatters, the set that gathers, the set that all-reduces shards
        over their replicas (-1: none), and the first row of amounts.
        """
        # By ring (a tuple of devices), the bytes of the full buffer: summed, in memory, gathered.
        amounts: dict[tuple[int, ...], Array] = {}
        replica_amounts: dict[tuple[int, ...], Array] = {}
        for s, dtype in regions:
            gathered = self.plan.parsed_precision.gather_dtype(dtype).itemsize
            widths = np.array([reduced_element_bytes(self.plan, dtype), dtype.itemsize, gathered])
            for ring in s.groups:
                amounts[ring] = amounts.get(ring, 0) + s.padded_elements * widths
            for ring in s.replicas if s.group_size else ():
                replica_amounts[ring] = replica_amounts.get(ring, 0) + s.elements_per_shard * widths
        row, _ = store.amounts.add(np.array([*amounts.values(), *replica_amounts.values()]))
        numbers, rings = self.cluster.rings, tuple(amounts)
        # The gradients of a block that the same sets of devices sum are summed together.
        key = block, tuple(dict.fromkeys(s.devices for s, _ in regions))
        replicas = -1
        if replica_amounts:
            replicas = numbers.set_number(tuple(replica_amounts), Collective.ALL_REDUCE, key)
        scatter = numbers.set_number(rings, Collective.REDUCE_SCATTER, key)
        return scatter, numbers.set_number(rings, Collective.ALL_GATHER, key), replicas, row

    def gather_row(
        self, store: RowStore, number: int, regions: Sequence[tuple[ParameterRegion, torch.dtype]]
    ) -> Slot:
        """Returns the slot of a gather of a block (ZeRO-3) in sync_units.

        number: that of the gather; regions: (region, dtype of its parameter).
        """
        to_sync = [(s, dtype) for s, dtype in regions if s.needs_sync]
        if not to_sync:
            return NOTHING

        def build() -> Slot:
            rings = self._shard_rings(store, to_sync, number)
            row = [*NOTHING, *NOTHING, *NOTHING, *rings, 0, 0, *NOTHING]
            return store.sync_units.add(np.array([row], np.int64))

        return store.cached(("gather", number, *to_sync), build)


def _tile_regions(reader: Reader) -> list[Box | None]:
    """Returns by tile of a reader, copies included, the region that the tile needs, or None."""
    regions = reader.tiling.regions[reader.operand]
    lows, highs = regions.boxes[:, :, 0].tolist(), regions.boxes[:, :, 1].tolist()
    return [
        Box(tuple(lo), tuple(hi)) if needed else None
        for lo, hi, needed in zip(lows, highs, regions.needed, strict=True)
        for _ in range(reader.tiling.copies)
    ]
