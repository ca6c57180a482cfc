"""Computes the step times of thousands of plans per second, exactly as the full simulation does.

An evaluator holds the tiles of a plan; a move gives some operators other tiles. The plan's computations and
messages are stored as rows, for example (device, nanoseconds) of a computation; a slot points to the rows
of one instruction (arrays.py). A move builds only the rows that it affects, and rows that were built before
come from a cache. Then one JIT-compiled function assembles the step from the rows and simulates it
(kernel.py). A loss may be *replicated*: every device that has a part of it receives all parts, merges them
by itself and computes the following operators, so that it can start its backward
(program/replicated_loss.py). Whether it is depends on the tiles, so a move may change it.

    evaluator = Evaluator(graph, cluster, plan)
    undo = evaluator.move({"conv1": tiling})
    if evaluator.time(limit=best) is None:      # longer than the limit
        evaluator.restore(undo)

Searches use it. A plan that it does not support is refused (coverage.py); `simulate` supports all plans.
"""

# i: operator, j: operator that reads a value, k: number of an operand, v: value, d: device. plan.bn: the
# samples over which batch norm takes its statistics (plans/plan.py)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError, OutOfTime
from raddle.graph.gradients import has_backward
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling
from raddle.plans.validation import validate_settings
from raddle.plans.value_dtypes import in_precision
from raddle.simulation.fast.cluster_arrays import ClusterArrays
from raddle.simulation.fast.composites import Composites
from raddle.simulation.fast.compute_rows import ComputeRows
from raddle.simulation.fast.coverage import unsupported
from raddle.simulation.fast.graph_index import index_graph
from raddle.simulation.fast.parameter_sync import ParameterSync
from raddle.simulation.fast.plan_rows import PlanRows, Undo
from raddle.simulation.fast.replicated_loss import ReplicatedLoss
from raddle.simulation.fast.store import RowStore
from raddle.simulation.fast.tilings import NumberedTiling, Reader, Tilings
from raddle.simulation.fast.timer import NO_LIMIT, Timer
from raddle.simulation.fast.value_rows import MergeKey, MergeRows, ValueRows, ValueSource

Array = np.ndarray
# When the rows take more bytes than this, all but those of the current plan are dropped.
MAX_STORE_BYTES = 512 * 2**20


class Evaluator:
    """The step time of a plan whose tiles change; see the top of the file.

    look: is called before rows are built; a search looks at its clock there.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        plan: Plan,
        profile: Profile | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        _check_supported(plan, cluster)
        graph = in_precision(graph, plan.parsed_precision)
        arrays, links = ClusterArrays(cluster, profile), len(cluster.links)
        self.index = index_graph(graph, plan)
        self.timer = Timer(self.index, plan, arrays, links)
        self.plan_rows = PlanRows(self.index, arrays.count, links)
        self.compute_rows = ComputeRows(graph, arrays, self.index.active, plan.bn, profile)
        self.value_rows = ValueRows(graph, arrays, plan.bn)
        self.parameter_sync = ParameterSync(self.index, arrays, plan, self.plan_rows)
        self.replicated_loss = ReplicatedLoss(self.index, plan)
        self.composites = Composites(
            self.compute_rows.fused_costs.native_calls, self.index.op_number
        )
        self.store = RowStore(look)
        self.tilings = Tilings(plan.bn, training=bool(self.index.active))
        self.tiles: list[NumberedTiling] = [None] * len(graph.ops)  # type: ignore[list-item]
        # By operator: the key and the rows of the merge of its partial results; None if there is no merge.
        self.merges: list[tuple[MergeKey | None, MergeRows]] = [(None, MergeRows())] * len(
            graph.ops
        )
        self.move(plan.tiles)

    @property
    def load(self) -> Array:
        """By resource (devices, then links): a lower bound of its busy nanoseconds in a step.

        The bound does not count all-reduces and host overhead.
        """
        return self.plan_rows.load

    @property
    def counts(self) -> Array:
        """The numbers of nodes, edges and simulated nodes of the last step that was timed (arrays.py)."""
        return self.timer.counts

    @property
    def memory(self) -> Array:
        """By device: bytes of parameters, gradients, optimizer state and values saved for backward.

        It is an estimate for searches. simulation/memory/peaks.py computes exact peaks from a timeline,
        with received values and lifetimes.
        """
        return self.plan_rows.held_bytes

    # -- moves -----------------------------------------------------------------------------------

    def move(self, changes: Mapping[str, Tiling]) -> Undo:
        """Gives operators other tiles; returns an `undo`, with which `restore(undo)` reverts the move.

        changes: by name of an operator, its new tiling. Raises InputError if no plan can have these tiles,
        and OutOfTime if `look` does; the move is then reverted.
        """
        if self.store.nbytes > MAX_STORE_BYTES:
            self._rebuild_rows()
        undo = Undo()
        try:
            self._move(changes, undo)
        except (InputError, OutOfTime):
            self.restore(undo)
            raise
        return undo

    def restore(self, undo: Undo) -> None:
        """Reverts a move."""
        undo.restore()

    def _move(self, changes: Mapping[str, Tiling], undo: Undo) -> None:
        """Sets the tiles, then updates all slots that depend on them; `undo` records the old state."""
        index, ops, plan_rows, store = self.index, self.index.graph.ops, self.plan_rows, self.store
        undo.save(plan_rows.load)
        undo.save(plan_rows.held_bytes)
        changed = []
        for name, tiling in changes.items():
            i = index.op_number[name]
            tiled = self.tilings.numbered(ops[i], tiling)
            if self.tiles[i] is not tiled:
                undo.set(self.tiles, i, tiled)
                changed.append(i)
        # The operators whose merge of partial results may change.
        to_merge = {*changed, *self.replicated_loss.update(undo, changed, self.tiles, self.tilings)}
        fusion_changed = self.composites.update(undo, changed, ops, self.tiles, self.tilings)
        for i in (*changed, *fusion_changed):
            self._update_compute(undo, i)
        values: set[int] = set()  # the values whose messages may change
        for i in changed:
            saved = self.compute_rows.saved_bytes_rows(store, ops[i], self.tiles[i])
            plan_rows.set_slot(undo, store, plan_rows.held_bytes_slots, i, saved, store.sizes)
            for name in ops[i].inputs:
                # A buffer, such as a running mean, stands for the value that it takes after the step.
                source = name if name in index.value_number else index.graph.updates.get(name)
                if source in index.value_number:
                    values.add(index.value_number[source])
                    producer, _ = index.producer[index.value_number[source]]
                    to_merge.add(producer)
            values.update(index.value_number[out] for out in ops[i].outputs)
        for i in to_merge:
            if self._update_merge(undo, i):
                values.update(index.value_number[out] for out in ops[i].outputs)
        for v in values:
            forward, backward = self.value_rows.transfer_rows(store, *self._source_and_readers(v))
            plan_rows.set_slot(undo, store, plan_rows.slots.activation, v, forward, store.messages)
            plan_rows.set_slot(undo, store, plan_rows.slots.gradient, v, backward, store.messages)
        self.parameter_sync.update(undo, store, changed, self.tiles)

    def _update_compute(self, undo: Undo, i: int) -> None:
        """Updates the forward and backward slots of an operator."""
        op, tiled, plan_rows, store = (
            self.index.graph.ops[i],
            self.tiles[i],
            self.plan_rows,
            self.store,
        )
        fused = self.composites.is_fused(i)  # it runs in one PyTorch call with other operators
        rows = self.compute_rows.run_rows(store, op, tiled, "F", fused)
        plan_rows.set_slot(undo, store, plan_rows.slots.forward, i, rows, store.computes)
        if has_backward(op, self.index.active):
            rows = self.compute_rows.run_rows(store, op, tiled, "B", fused)
            plan_rows.set_slot(undo, store, plan_rows.slots.backward, i, rows, store.computes)

    def _update_merge(self, undo: Undo, i: int) -> bool:
        """Updates the merge of an operator's partial results; returns whether it changed."""
        index, plan_rows, store, op = (
            self.index,
            self.plan_rows,
            self.store,
            self.index.graph.ops[i],
        )
        if not op.space.combine:  # its tiles never give partial results
            return False
        key = self._merge_key(i) if self.tilings.is_partial(op, self.tiles[i]) else None
        if key == self.merges[i][0]:
            return False
        rows = (
            MergeRows()
            if key is None
            else self.value_rows.merge_rows(store, op, self.tiles[i], key)
        )
        undo.set(self.merges, i, (key, rows))
        # A merge is computed forward and, where there is a gradient, once more backward.
        times = 2 if has_backward(op, index.active) else 1
        plan_rows.set_slot(
            undo, store, plan_rows.slots.merge, i, rows.compute, store.computes, times
        )
        plan_rows.set_slot(undo, store, plan_rows.slots.partial, i, rows.partial, store.messages)
        plan_rows.set_slot(
            undo, store, plan_rows.slots.partial_gradient, i, rows.partial_gradient, store.messages
        )
        return True

    def _merge_key(self, i: int) -> MergeKey:
        """Returns everything that the merge of an operator's partial results depends on in this plan."""
        # readers: the devices that read the result. index.readers also lists operators that read a buffer
        # which takes the result after the step; these do not count.
        index, op = self.index, self.index.graph.ops[i]
        readers = {d for out in op.outputs for j, _, _ in index.readers[index.value_number[out]]
                   if out in index.graph.ops[j].inputs for d in self.tiles[j].devices}  # fmt: skip
        element_bytes = index.graph.values[op.outputs[0]].dtype.itemsize
        active, replicated = (
            op.outputs[0] in index.active,  # gradients flow through it
            op.name in self.replicated_loss.current[0],  # every device merges it by itself
        )
        return MergeKey(
            self.tiles[i].number, tuple(sorted(readers)), element_bytes, active, replicated
        )

    def _source_and_readers(self, v: int) -> tuple[ValueSource, Sequence[Reader]]:
        """Returns the current producer and readers of a value."""
        i, output = self.index.producer[v]
        ops, tiles, (key, merged) = self.index.graph.ops, self.tiles, self.merges[i]
        readers = [
            Reader(ops[j], k, sends_gradient, tiles[j])
            for j, k, sends_gradient in self.index.readers[v]
        ]
        return ValueSource(ops[i], output, tiles[i], key, merged.cells), readers

    # -- time ------------------------------------------------------------------------------------

    def time(self, limit: int | None = None, *, fold: bool = True) -> int | None:
        """Returns the nanoseconds of a step; None if they exceed `limit`.

        fold: join consecutive tasks of a device into one node (nodes.py), which is faster.
        """
        limit = NO_LIMIT if limit is None else limit
        if int(self.load.max()) > limit:
            self.counts[:] = 0
            return None
        return self.timer.time(self.plan_rows.slots, self.store, limit, fold=fold)

    def _rebuild_rows(self) -> None:
        """Drops all rows and builds those of the current plan again."""
        ops = self.index.graph.ops
        tiles = {op.name: self.tiles[i].tiling for i, op in enumerate(ops)}
        self.store = RowStore(self.store.look)
        self.tilings = Tilings(self.tilings.bn, training=self.tilings.training)
        self.plan_rows.clear()
        self.parameter_sync.clear()
        self.replicated_loss.clear()
        self.tiles = [None] * len(ops)  # type: ignore[list-item]
        self.merges = [(None, MergeRows())] * len(ops)
        self._move(tiles, Undo())


def _check_supported(plan: Plan, cluster: Cluster) -> None:
    """Raises InputError if the evaluator does not support the plan."""
    validate_settings(plan)
    reason = unsupported(plan)
    if reason is not None:
        raise InputError(f"the evaluator does not time {reason}: simulate the plan.")
    if plan.devices != len(cluster.devices):
        raise InputError(
            f"the evaluator times a plan on all of its cluster: the plan has {plan.devices} devices, "
            f"'{cluster.name}' {len(cluster.devices)}."
        )
