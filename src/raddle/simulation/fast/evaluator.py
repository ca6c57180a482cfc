"""The time of one step of a plan, thousands of times a second: exactly what simulating its program gives.

An evaluator holds a plan's tiles. A move gives some operators other tiles; only what these touch is worked
out again, and what has been seen before is looked up. Then one compiled function puts the step together and
simulates it (kernel.py).

    evaluator = Evaluator(graph, cluster, plan)
    undo = evaluator.move({"conv1": tiling})
    if evaluator.time(limit=best) is None:      # longer than the limit
        evaluator.restore(undo)

It refuses what it does not time exactly: `unsupported(plan)` names it (coverage.py), `simulate` knows it.
"""

# i: operator, v: value, d: device

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.gradients import has_backward
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling
from raddle.plans.validation import validate_settings
from raddle.simulation.fast.cluster_arrays import ClusterArrays
from raddle.simulation.fast.composites import Composites
from raddle.simulation.fast.compute_rows import ComputeRows
from raddle.simulation.fast.coverage import unsupported
from raddle.simulation.fast.graph_index import index_graph
from raddle.simulation.fast.parameter_sync import ParameterSync
from raddle.simulation.fast.plan_rows import PlanRows, Undo
from raddle.simulation.fast.replicated_loss import ReplicatedLoss
from raddle.simulation.fast.store import RowStore
from raddle.simulation.fast.tilings import Reader, Tiled, Tilings
from raddle.simulation.fast.timer import NO_LIMIT, Timer
from raddle.simulation.fast.value_rows import Made, Merged, MergeKey, Values

Array = np.ndarray
STORE = 512 * 2**20  # bytes of rows, after which all but the current plan's are forgotten


class Evaluator:
    """The step time of a plan that changes."""

    def __init__(
        self, graph: Graph, cluster: Cluster, plan: Plan, profile: Profile | None = None
    ) -> None:
        _refuse(plan, cluster)
        machine, links = ClusterArrays(cluster), len(cluster.links)
        self.outline = index_graph(graph, plan.parsed_sync)
        self.timer = Timer(self.outline, plan, machine, links)
        self.to = PlanRows(self.outline, machine.count, links)
        self.computing = ComputeRows(graph, machine, self.outline.active, plan.bn, profile)
        self.values = Values(graph, machine, plan.bn)
        self.syncing = ParameterSync(self.outline, machine, plan, self.to)
        self.closings = ReplicatedLoss(self.outline, plan)
        self.composites = Composites(
            self.computing.fused_costs.native_calls, self.outline.op_number
        )
        self.store, self.tilings = RowStore(), Tilings(plan.bn)
        self.tiles: list[Tiled] = [None] * len(graph.ops)  # type: ignore[list-item]
        # By operator, what its merge depends on, and what is known of that.
        self.merged: list[tuple[MergeKey | None, Merged]] = [(None, Merged())] * len(graph.ops)
        self.move(plan.tiles)

    @property
    def load(self) -> Array:
        """By resource, nanoseconds that it is busy at least."""
        return self.to.load

    @property
    def counts(self) -> Array:
        """Nodes, edges and simulated nodes of the last step that was timed."""
        return self.timer.counts

    @property
    def memory(self) -> Array:
        """By device, bytes of parameters with their gradients and states, and of what the backward keeps.

        An estimate for searches: what is alive at the same time, and what was received, is told by
        simulation/memory/peaks.py from a timeline.
        """
        return self.to.held_bytes

    # -- moves -----------------------------------------------------------------------------------

    def move(self, changes: Mapping[str, Tiling]) -> Undo:
        """Gives operators other tiles; `restore` takes it back. InputError where no plan can be so."""
        if self.store.nbytes > STORE:
            self._renew()
        undo = Undo()
        try:
            self._move(changes, undo)
        except InputError:
            self.restore(undo)
            raise
        return undo

    def restore(self, undo: Undo) -> None:
        undo.restore()

    def _move(self, changes: Mapping[str, Tiling], undo: Undo) -> None:
        o, ops, to, store = self.outline, self.outline.graph.ops, self.to, self.store
        undo.save(to.load)
        undo.save(to.held_bytes)
        changed = []
        for name, tiling in changes.items():
            i = o.op_number[name]
            tiled = self.tilings.of(ops[i], tiling)
            if self.tiles[i] is not tiled:
                undo.set(self.tiles, i, tiled)
                changed.append(i)
        merges = {*changed, *self.closings.update(undo, changed, self.tiles, self.tilings)}
        again = self.composites.update(undo, changed, ops, self.tiles, self.tilings)
        for i in (*changed, *again):
            self._compute(undo, i)
        values: set[int] = set()
        for i in changed:
            kept = self.computing.saved_bytes_rows(store, ops[i], self.tiles[i])
            to.set_slot(undo, store, to.held_bytes_slots, i, kept, store.sizes)
            for name in ops[i].inputs:
                source = name if name in o.value_number else o.graph.updates.get(name)
                if source in o.value_number:
                    values.add(o.value_number[source])
                    merges.add(o.producer[o.value_number[source]][0])
            values.update(o.value_number[out] for out in ops[i].outputs)
        for i in merges:
            if self._merge(undo, i):
                values.update(o.value_number[out] for out in ops[i].outputs)
        for v in values:
            there, back = self.values.value(store, *self._made(v))
            to.set_slot(undo, store, to.slots.activation, v, there, store.messages)
            to.set_slot(undo, store, to.slots.gradient, v, back, store.messages)
        self.syncing.update(undo, store, changed, self.tiles)

    def _compute(self, undo: Undo, i: int) -> None:
        op, tiled, to, store = self.outline.graph.ops[i], self.tiles[i], self.to, self.store
        together = self.composites.is_fused(i)
        run = self.computing.run_rows(store, op, tiled, "F", together)
        to.set_slot(undo, store, to.slots.forward, i, run, store.computes)
        if has_backward(op, self.outline.active):
            run = self.computing.run_rows(store, op, tiled, "B", together)
            to.set_slot(undo, store, to.slots.backward, i, run, store.computes)

    def _merge(self, undo: Undo, i: int) -> bool:
        """Where an operator's results are merged; whether that has changed."""
        o, to, store, op = self.outline, self.to, self.store, self.outline.graph.ops[i]
        if not op.space.combine:
            return False
        key = self._merge_key(i) if self.tilings.partial(op, self.tiles[i]) else None
        if key == self.merged[i][0]:
            return False
        found = Merged() if key is None else self.values.merge(store, op, self.tiles[i], key)
        undo.set(self.merged, i, (key, found))
        # A merge is computed forward and, where there is a gradient, once more backward.
        times = 2 if has_backward(op, o.active) else 1
        to.set_slot(undo, store, to.slots.merge, i, found.rows, store.computes, times)
        to.set_slot(undo, store, to.slots.partial, i, found.there, store.messages)
        to.set_slot(undo, store, to.slots.partial_gradient, i, found.back, store.messages)
        return True

    def _merge_key(self, i: int) -> MergeKey:
        o, op = self.outline, self.outline.graph.ops[i]
        readers = {d for out in op.outputs for j, _, _ in o.readers[o.value_number[out]]
                   if out in o.graph.ops[j].inputs for d in self.tiles[j].devices}  # fmt: skip
        width = o.graph.values[op.outputs[0]].dtype.itemsize
        active, closes = op.outputs[0] in o.active, op.name in self.closings.current[0]
        return MergeKey(self.tiles[i].number, tuple(sorted(readers)), width, active, closes)

    def _made(self, v: int) -> tuple[Made, Sequence[Reader]]:
        """A value as it is made and read now."""
        i, output = self.outline.producer[v]
        ops, tiles, (key, merged) = self.outline.graph.ops, self.tiles, self.merged[i]
        readers = [Reader(ops[j], k, graded, tiles[j]) for j, k, graded in self.outline.readers[v]]
        return Made(ops[i], output, tiles[i], key, merged.cells), readers

    # -- time ------------------------------------------------------------------------------------

    def time(self, limit: int | None = None, *, fold: bool = True) -> int | None:
        """Nanoseconds of a step; None if they are more than the limit. `fold=False` keeps all tasks."""
        limit = NO_LIMIT if limit is None else limit
        if int(self.load.max()) > limit:
            self.counts[:] = 0
            return None
        return self.timer.time(self.to.slots, self.store, limit, fold=fold)

    def _renew(self) -> None:
        """Forgets all rows but those of the current plan."""
        ops = self.outline.graph.ops
        tiles = {op.name: self.tiles[i].tiling for i, op in enumerate(ops)}
        self.store, self.tilings = RowStore(), Tilings(self.tilings.bn)
        self.to.clear()
        self.syncing.clear()
        self.closings.clear()
        self.tiles = [None] * len(ops)  # type: ignore[list-item]
        self.merged = [(None, Merged())] * len(ops)
        self._move(tiles, Undo())


def _refuse(plan: Plan, cluster: Cluster) -> None:
    validate_settings(plan)
    reason = unsupported(plan)
    if reason is not None:
        raise InputError(f"the evaluator does not time {reason}: simulate the plan.")
    if plan.devices != len(cluster.devices):
        raise InputError(
            f"the evaluator times a plan on all of its cluster: the plan has {plan.devices} devices, "
            f"'{cluster.name}' {len(cluster.devices)}."
        )
