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

# i: operator, v: value, p: parameter, d: device

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.gradients import graded_inputs, has_backward
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling
from raddle.plans.validation import validate_settings
from raddle.program.closing import SMALL, closing
from raddle.program.program import Cell
from raddle.program.script import BUCKETS, SERVER
from raddle.simulation.fast.arrays import Arena, Slots, Space, Ways
from raddle.simulation.fast.coverage import unsupported
from raddle.simulation.fast.kernel import LONGER, TOO_SMALL, step_time
from raddle.simulation.fast.making import Made, Maker, MergeKey, Reader, Tiled
from raddle.simulation.fast.outline import outline
from raddle.simulation.fast.store import NOTHING, Rows, Slot

Array = np.ndarray
NO_LIMIT = np.iinfo(np.int64).max // 4
STORE = 512 * 2**20  # bytes of rows, after which all but the current plan's are forgotten


Undo = list[tuple[Any, Any, Any]]


class Evaluator:
    """The step time of a plan that changes."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        plan: Plan,
        profile: Profile | None = None,
    ) -> None:
        _refuse(plan, cluster)
        self.graph, self.cluster, self.bn, self.bucket = graph, cluster, plan.bn, plan.bucket
        self.outline, self.count = outline(graph), plan.devices
        self.make = Maker(graph, cluster, self.outline.active, plan, profile)
        self.tail = _tail(graph, self.outline.active)
        self.closings: dict[tuple[int, ...], frozenset[str]] = {}
        self.counts = np.zeros(3, np.int64)  # of the last run: nodes, edges, nodes simulated
        self.space = self._room(4096, 16384)
        ops, values, parameters = len(graph.ops), len(self.outline.value), len(self.outline.users)
        table = np.zeros((5 * ops + 2 * values, 2), np.int64)
        ends = np.cumsum([ops] * 5 + [values] * 2)[:-1]
        synced = np.zeros((parameters, 2), np.int64)
        self.slots = Slots(*(table, *np.split(table, ends), synced))
        way = SERVER if plan.syncing.inline else BUCKETS
        self.ways = Ways(way, plan.bucket, True, False, np.zeros(parameters, np.int64))
        self.load = np.zeros(self.count + len(cluster.links), np.int64)
        self.held = np.zeros(self.count, np.int64)  # bytes by device, see `memory`
        self.held_slots = np.zeros((ops + parameters, 2), np.int64)
        self.tiles: list[Tiled] = [None] * ops  # type: ignore[list-item]
        self.cells: list[tuple[Cell, ...]] = [()] * ops
        self.merged: list[MergeKey | None] = [None] * ops  # to see what changes
        self.closed: frozenset[str] = frozenset()
        found = {n.main.name: n for n in self.make.compute.natives.values()}
        active, number = self.outline.active, self.outline.number
        self.graded = [has_backward(op, active) for op in graph.ops]
        self.composites = [[number[name] for name in n.shares] for n in found.values()]
        self.composite = {i: c for c, own in enumerate(self.composites) for i in own}
        self.together = [False] * len(self.composites)  # whether all of one is tiled alike
        self.alike = [[number[name] for name in (*n.shares, *n.near)] for n in found.values()]
        self.watched: dict[int, list[int]] = {}  # by operator, composites that it is in or near
        for c, own in enumerate(self.alike):
            for i in own:
                self.watched.setdefault(i, []).append(c)
        self.move(plan.tiles)

    # -- moves -----------------------------------------------------------------------------------

    def move(self, changes: Mapping[str, Tiling]) -> Undo:
        """Gives operators other tiles; `restore` takes it back. InputError where no plan can be so."""
        if self.make.computes.nbytes + self.make.messages.nbytes > STORE:
            self._renew()
        undo: Undo = []
        try:
            self._move(changes, undo)
        except InputError:
            self.restore(undo)
            raise
        return undo

    def restore(self, undo: Undo) -> None:
        for target, index, old in reversed(undo):
            if index is None:
                setattr(self, target, old)
            else:
                target[index] = old

    def _set(self, undo: Undo, target: Any, index: Any, value: Any) -> None:
        undo.append((target, index, target[index]))
        target[index] = value

    def _point(self, undo: Undo, slots: Array, index: int, slot: Slot, rows: Rows | None) -> None:
        """Points a slot to other rows; with it goes the load that they put on resources."""
        first, count = int(slots[index, 0]), int(slots[index, 1])
        if (first, count) == slot:
            return
        undo.append((slots, index, (first, count)))
        slots[index] = slot
        if rows is not None:
            self._carry(rows, (first, count), -1)
            self._carry(rows, slot, 1)

    def _carry(self, rows: Rows, slot: Slot, sign: int) -> None:
        if not slot[1]:
            return
        own = rows.data[slot[0] : slot[0] + slot[1]]
        if rows is self.make.computes:
            np.add.at(self.load, own[:, 0], sign * own[:, 1])
        elif rows is self.make.sizes:
            np.add.at(self.held, own[:, 0], sign * own[:, 1])
        elif rows is self.make.synced:
            for row in own.tolist():
                self._carry(self.make.messages, (row[0], row[1]), sign)
                self._carry(self.make.computes, (row[2], row[3]), sign)
                self._carry(self.make.messages, (row[4], row[5]), sign)
        else:
            for column in (3, 4):
                held = own[:, column] >= 0
                np.add.at(self.load, own[held, column], sign * own[held, 2])

    def _move(self, changes: Mapping[str, Tiling], undo: Undo) -> None:
        o = self.outline
        undo.append(("load", None, self.load.copy()))
        undo.append(("held", None, self.held.copy()))
        changed = []
        for name, tiling in changes.items():
            i = o.number[name]
            tiled = self.make.tiled(self.graph.ops[i], tiling)
            if self.tiles[i] is not tiled:
                self._set(undo, self.tiles, i, tiled)
                changed.append(i)
        merges = set(changed)
        closed = self._closing(changed)
        if closed != self.closed:
            merges |= {o.number[name] for name in closed ^ self.closed}
            undo.append(("closed", None, self.closed))
            self.closed = closed
        values: set[int] = set()
        again = self._regrouped(undo, changed) if self.watched else ()
        for i in (*changed, *again):
            self._compute(undo, i)
        for i in changed:
            op = self.graph.ops[i]
            make, tiled = self.make, self.tiles[i]
            self._point(undo, self.held_slots, i, make.outputs(op, tiled), make.sizes)
            for name in op.inputs:
                source = name if name in o.value else self.graph.updates.get(name)
                if source in o.value:
                    values.add(o.value[source])
                    merges.add(o.made_by[o.value[source]][0])
            values.update(o.value[out] for out in op.outputs)
        for i in merges:
            if self._merge(undo, i):
                values.update(o.value[out] for out in self.graph.ops[i].outputs)
        for v in values:
            there, back = self.make.value(*self._made(v))
            self._point(undo, self.slots.activation, v, there, self.make.messages)
            self._point(undo, self.slots.gradient, v, back, self.make.messages)
        for p in {
            o.parameter[n] for i in changed for n in self.graph.ops[i].inputs if n in o.parameter
        }:
            self._parameter(undo, p)

    def _regrouped(self, undo: Undo, changed: Sequence[int]) -> set[int]:
        """Operators of composites whose tiles now belong together, or do so no longer."""
        found: set[int] = set()
        ops, make = self.graph.ops, self.make
        for c in {c for i in changed for c in self.watched.get(i, ())}:
            together = len({make.signature(ops[i], self.tiles[i]) for i in self.alike[c]}) == 1
            if together != self.together[c]:
                self._set(undo, self.together, c, together)
                found.update(self.composites[c])
        return found

    def _compute(self, undo: Undo, i: int) -> None:
        op, make, tiled = self.graph.ops[i], self.make, self.tiles[i]
        together = i in self.composite and self.together[self.composite[i]]
        run, rows = make.run, make.computes
        self._point(undo, self.slots.forward, i, run(op, tiled, "F", together), rows)
        if self.graded[i]:
            self._point(undo, self.slots.backward, i, run(op, tiled, "B", together), rows)

    # -- time ------------------------------------------------------------------------------------

    def time(self, limit: int | None = None, *, fold: bool = True) -> int | None:
        """Nanoseconds of a step; None if they are more than the limit. `fold=False` keeps all tasks."""
        limit = NO_LIMIT if limit is None else limit
        if int(self.load.max()) > limit:
            self.counts[:] = 0
            return None
        arena = Arena(
            self.make.computes.data, self.make.messages.data, self.make.amounts.data,
            self.make.synced.data,
        )  # fmt: skip
        while True:
            found = step_time(
                self.count, len(self.cluster.links), self.ways, self.outline.tape, self.slots,
                arena, self.make.rings.arrays(), self.make.handling, self.space, limit, fold, self.counts,
            )  # fmt: skip
            if found != TOO_SMALL:
                return None if found == LONGER else int(found)
            self.space = self._room(2 * len(self.space.nodes), 2 * len(self.space.edges))

    def _room(self, nodes: int, edges: int) -> Space:
        tape = self.outline.tape
        arrivals = int(tape.arrival.max(initial=-1)) + 1
        marks = max(len(self.outline.users), int(tape.mark.max(initial=-1)) + 1)

        def table(rows: int, kind: Any) -> Array:
            return np.zeros((rows, self.count), kind)

        return Space(
            np.zeros((nodes, 8), np.int64), np.zeros((edges, 3), np.int64),
            table(arrivals, np.int32), table(marks, np.int32), table(marks, np.int64),
            table(max(3 * len(self.outline.users), nodes // 8), np.int32),
        )  # fmt: skip

    @property
    def memory(self) -> Array:
        """By device, bytes of parameters with their gradients and states, and of what the backward keeps.

        An estimate for searches: what is alive at the same time, and what was received, is told by
        simulation/memory/peaks.py from a timeline.
        """
        return self.held

    # -- what is remembered ----------------------------------------------------------------------

    def _renew(self) -> None:
        """Forgets all rows but those of the current plan."""
        tiles = {op.name: self.tiles[i].tiling for i, op in enumerate(self.graph.ops)}
        self.make.forget()
        self.slots.table[:] = 0
        self.slots.synced[:] = 0
        self.held_slots[:] = 0
        self.load[:] = 0
        self.held[:] = 0
        self.closings.clear()
        self.tiles = [None] * len(self.tiles)  # type: ignore[list-item]
        self.merged = [None] * len(self.merged)
        self._move(tiles, [])

    # -- partial results -------------------------------------------------------------------------

    def _closing(self, changed: Sequence[int]) -> frozenset[str]:
        if not any(i in self.tail for i in changed):
            return self.closed
        key = tuple(self.tiles[i].number for i in self.tail)
        if key not in self.closings:
            tiles = {op.name: self.tiles[i].tiling for i, op in enumerate(self.graph.ops)}
            plan = Plan(tiles, self.count, bn=self.bn)
            self.closings[key] = closing(
                self.graph, plan, self.outline.active,
                lambda op: self.make.partial(op, self.tiles[self.outline.number[op.name]]),
            )  # fmt: skip
        return self.closings[key]

    def _merge(self, undo: Undo, i: int) -> bool:
        """Where an operator's results are merged; whether that has changed."""
        op, o = self.graph.ops[i], self.outline
        if not op.space.combine:
            return False
        key = None
        if self.make.partial(op, self.tiles[i]):
            readers = {d for out in op.outputs for j, _, _ in o.readers[o.value[out]]
                       if out in self.graph.ops[j].inputs for d in self.tiles[j].devices}  # fmt: skip
            active = has_backward(op, o.active)
            width = self.graph.values[op.outputs[0]].dtype.itemsize
            closes = op.name in self.closed
            key = MergeKey(self.tiles[i].number, tuple(sorted(readers)), width, active, closes)
        if key == self.merged[i]:
            return False
        self._set(undo, self.merged, i, key)
        cells, rows, there, back = (
            ((), NOTHING, NOTHING, NOTHING)
            if key is None
            else self.make.merge(op, self.tiles[i], key)
        )
        self._set(undo, self.cells, i, cells)
        # A merge is computed forward and, where there is a gradient, once more backward.
        twice = 2 if has_backward(op, o.active) else 1
        for _ in range(twice - 1):
            self._carry(self.make.computes, tuple(self.slots.merge[i]), -1)
            self._carry(self.make.computes, rows, 1)
        self._point(undo, self.slots.merge, i, rows, self.make.computes)
        self._point(undo, self.slots.partial, i, there, self.make.messages)
        self._point(undo, self.slots.partial_back, i, back, self.make.messages)
        return True

    # -- values and parameters -------------------------------------------------------------------

    def _made(self, v: int) -> tuple[Made, list[Reader]]:
        """A value as it is made and read now."""
        i, output = self.outline.made_by[v]
        ops, tiles = self.graph.ops, self.tiles
        readers = [Reader(ops[j], k, graded, tiles[j]) for j, k, graded in self.outline.readers[v]]
        return Made(ops[i], output, tiles[i], self.merged[i], self.cells[i]), readers

    def _parameter(self, undo: Undo, p: int) -> None:
        number, users = self.outline.number, self.outline.users[p]
        readers = [Reader(op, k, True, self.tiles[number[op.name]]) for op, k in users]
        value = self.graph.values[users[0][0].inputs[users[0][1]]]
        synced, size = self.make.parameter(value, readers)
        self._point(undo, self.held_slots, len(self.tiles) + p, size, self.make.sizes)
        if self.outline.tape.graded[p]:
            self._point(undo, self.slots.synced, p, synced, self.make.synced)


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


def _tail(graph: Graph, active: frozenset[str]) -> dict[int, None]:
    """Operators whose tiles can decide how the forward closes: those near the loss (program/closing.py)."""
    near: set[str] = set()
    found: dict[int, None] = {}
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        if graph.loss in op.outputs or any(out in near for out in op.outputs):
            found[i] = None
            if all(graph.values[out].nbytes <= SMALL for out in op.outputs):
                near.update(graded_inputs(op, active))
    return found
