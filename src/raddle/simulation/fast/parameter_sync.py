"""Updates the holders, slices and slots of parameters when tiles change.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

A slot is the range of rows that a parameter has in the store, the tables of all compute, message and sync
rows (store.py). A sync unit is a parameter, or slices of some (a bundle), that are synchronised at once
(arrays.py). A gather brings the parameters of a block before its operators run (ZeRO-3,
program/parameter_blocks.py); the number of a gather is its place in GraphIndex.gathers. sync.sliced: the
plan's sync kind cuts parameters into slices, which are sent one by one.
"""

# p: parameter, i: operator, n: gather

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.graph.graph import Value
from raddle.plans.plan import Plan
from raddle.program.bundle import Bundle
from raddle.program.parameter_region import ParameterRegion
from raddle.program.parameter_slices import cut_slices
from raddle.simulation.fast.cluster_arrays import ClusterArrays
from raddle.simulation.fast.graph_index import GraphIndex
from raddle.simulation.fast.parameter_rows import ParameterRows
from raddle.simulation.fast.plan_rows import PlanRows, Undo
from raddle.simulation.fast.store import RowStore
from raddle.simulation.fast.tilings import NumberedTiling, Reader


class ParameterSync:
    """The parameters of the current plan.

    Slices are joined in bundles and assigned to servers all together, so one change of tiles may give many
    of them new servers.
    """

    def __init__(
        self, index: GraphIndex, cluster: ClusterArrays, plan: Plan, plan_rows: PlanRows
    ) -> None:
        self.index, self.plan_rows, self.sync = index, plan_rows, plan.parsed_sync
        self.parameter_rows = ParameterRows(index.graph, cluster, plan)
        self.names = list(index.parameter_number)  # by number
        # By parameter: the regions that devices hold, and its slices.
        self.regions: list[tuple[ParameterRegion, ...]] = [() for _ in self.names]
        self.slices: list[tuple[ParameterRegion, ...]] = [() for _ in self.names]
        # By parameter: the bundles in which it is the first one.
        self.bundles: list[tuple[Bundle, ...]] = [() for _ in self.names]
        self.gathers_of: dict[int, list[int]] = {}  # by parameter: the gathers that bring it
        for number, names in enumerate(index.gathers):
            for name in names:
                self.gathers_of.setdefault(index.parameter_number[name], []).append(number)

    def update(
        self, undo: Undo, store: RowStore, changed: Iterable[int], tiles: Sequence[NumberedTiling]
    ) -> None:
        """Updates the slots of all parameters that the operators `changed` (their numbers) read."""
        index, ops = self.index, self.index.graph.ops
        changed = list(changed)
        affected = {
            index.parameter_number[name]
            for i in changed
            for name in ops[i].inputs
            if name in index.parameter_number
        }
        for p in affected:
            self._update_holders(undo, store, p, tiles)
        if self.sync.sliced and affected:
            self._update_slices(undo, store)
        for number in sorted({n for p in affected for n in self.gathers_of.get(p, ())}):
            self._update_gather(undo, store, number)

    def _value(self, p: int) -> Value:
        """Returns a parameter's value in the graph."""
        return self.index.graph.values[self.names[p]]

    def _update_holders(
        self, undo: Undo, store: RowStore, p: int, tiles: Sequence[NumberedTiling]
    ) -> None:
        """Updates which devices hold a parameter, its memory and, if it has no slices, its sync unit."""
        index, plan_rows = self.index, self.plan_rows
        # Reader: the operator, the number of its operand, whether a gradient comes back, its tiling
        users = [Reader(op, k, True, tiles[index.op_number[op.name]]) for op, k in index.users[p]]
        block = index.block_of.get(self.names[p], 0)
        placement = self.parameter_rows.placement(
            store, self._value(p), users, block, trained=bool(index.tape.has_gradient[p])
        )
        plan_rows.set_slot(
            undo,
            store,
            plan_rows.held_bytes_slots,
            len(index.op_number) + p,  # the slots of operators come first
            placement.memory_slot,
            store.sizes,
        )
        if placement.regions is not self.regions[p]:
            undo.set(self.regions, p, placement.regions)
        if index.tape.has_gradient[p] and not self.sync.sliced:
            plan_rows.set_slot(
                undo, store, plan_rows.slots.sync_units, p, placement.sync_slot, store.sync_units
            )

    def _update_slices(self, undo: Undo, store: RowStore) -> None:
        """Cuts all parameters into slices again, and joins them in bundles."""
        index, plan_rows = self.index, self.plan_rows
        cut = cut_slices(
            {n: self.regions[index.parameter_number[n]] for n in index.trained},
            index.trained,
            index.graph,
            self.sync,
        )
        bundles_of: dict[str, list[Bundle]] = {name: [] for name in index.trained}
        for bundle in cut.bundles:
            bundles_of[bundle.parameters[0]].append(bundle)
        for name, slices in cut.slices.items():
            p, bundles = index.parameter_number[name], tuple(bundles_of[name])
            if slices != self.slices[p]:
                undo.set(self.slices, p, slices)
            if bundles != self.bundles[p]:
                undo.set(self.bundles, p, bundles)
                slot = self.parameter_rows.bundle_rows(
                    store, self._value(p), bundles, index.parameter_number
                )
                plan_rows.set_slot(
                    undo, store, plan_rows.slots.sync_units, p, slot, store.sync_units
                )

    def _update_gather(self, undo: Undo, store: RowStore, number: int) -> None:
        """Updates the row of the gather of a block (ZeRO-3)."""
        index, plan_rows = self.index, self.plan_rows
        numbers = [index.parameter_number[name] for name in index.gathers[number]]
        regions = [(s, self._value(p).dtype) for p in numbers for s in self.regions[p]]
        slot = self.parameter_rows.gather_row(store, number, regions)
        plan_rows.set_slot(undo, store, plan_rows.slots.gathers, number, slot, store.sync_units)

    def clear(self) -> None:
        """Forgets all holders, slices and bundles."""
        self.regions = [() for _ in self.names]
        self.slices = [() for _ in self.names]
        self.bundles = [() for _ in self.names]
