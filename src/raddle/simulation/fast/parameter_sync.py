"""Updates the parameters when tiles change: their holders, their slices, their slots.

A slot is here the range of rows that a parameter has in the store, the tables of all compute, message and
sync rows (store.py). A sync unit is what is synchronised at once: a parameter, or one of its slices
(arrays.py). A pull gathers a sharded parameter for the operators of a block before they run (ZeRO-3,
program/zero3_blocks.py); the number of a pull is its place in GraphIndex.pulls. sync.sliced: the plan's
sync kind cuts parameters into slices, which are sent one by one.
"""

# p: parameter, i: operator, n: pull

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.graph.graph import Value
from raddle.plans.plan import Plan
from raddle.program.parameter_slices import cut_slices
from raddle.program.program import Bundle, ParameterRegion
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
        self.parameter_rows = ParameterRows(cluster, plan)
        self.names = list(index.parameter_number)  # by number
        # By parameter: the regions that devices hold, and its slices.
        self.regions: list[tuple[ParameterRegion, ...]] = [() for _ in self.names]
        self.slices: list[tuple[ParameterRegion, ...]] = [() for _ in self.names]
        # By parameter: the bundles in which it is the first one.
        self.bundles: list[tuple[Bundle, ...]] = [() for _ in self.names]
        self.pulls_of: dict[str, list[int]] = {}  # by operator: the pulls that it may need
        for number, (_, ops) in enumerate(index.pulls):
            for op in ops:
                self.pulls_of.setdefault(op.name, []).append(number)

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
        if not self.sync.sliced or not affected:
            return
        pulls = {n for i in changed for n in self.pulls_of.get(ops[i].name, ())}
        moved = self._update_slices(undo, store)
        pulls |= {n for n, (name, _) in enumerate(index.pulls) if name in moved}
        for number in pulls:
            self._update_pull(undo, store, number, tiles)

    def _value(self, p: int) -> Value:
        return self.index.graph.values[self.names[p]]

    def _update_holders(
        self, undo: Undo, store: RowStore, p: int, tiles: Sequence[NumberedTiling]
    ) -> None:
        """Updates which devices hold a parameter, its memory and, if it has no slices, its sync unit."""
        index, plan_rows = self.index, self.plan_rows
        # Reader: the operator, the number of its operand, whether a gradient comes back, its tiling
        users = [Reader(op, k, True, tiles[index.op_number[op.name]]) for op, k in index.users[p]]
        placement = self.parameter_rows.placement(store, self._value(p), users)
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

    def _update_slices(self, undo: Undo, store: RowStore) -> set[str]:
        """Cuts all parameters into slices again; returns the names of those whose slices changed."""
        index, plan_rows, moved = self.index, self.plan_rows, set[str]()
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
                moved.add(name)
                undo.set(self.slices, p, slices)
            if bundles != self.bundles[p]:
                undo.set(self.bundles, p, bundles)
                slot = self.parameter_rows.bundle_rows(
                    store, self._value(p), bundles, index.parameter_number
                )
                plan_rows.set_slot(
                    undo, store, plan_rows.slots.sync_units, p, slot, store.sync_units
                )
        return moved

    def _update_pull(
        self, undo: Undo, store: RowStore, number: int, tiles: Sequence[NumberedTiling]
    ) -> None:
        """Updates the messages of a pull, which gathers a sharded parameter (ZeRO-3)."""
        index, plan_rows = self.index, self.plan_rows
        name, ops = index.pulls[number]
        p, op_names = index.parameter_number[name], {op.name for op in ops}
        readers = [
            Reader(op, k, True, tiles[index.op_number[op.name]])
            for op, k in index.users[p]
            if op.name in op_names
        ]
        slot = self.parameter_rows.pull_rows(
            store, self._value(p), readers, self.regions[p], self.slices[p]
        )
        plan_rows.set_slot(undo, store, plan_rows.slots.pulls, number, slot, store.messages)

    def clear(self) -> None:
        """Forgets all holders, slices and bundles."""
        self.regions = [() for _ in self.names]
        self.slices = [() for _ in self.names]
        self.bundles = [() for _ in self.names]
