"""The time of one step of a plan, thousands of times a second: exactly what simulating its program gives.

An evaluator holds a plan's tiles. A move gives some operators other tiles; only what these touch is worked
out again, and what has been seen before is looked up. Then one compiled function puts the step together and
simulates it (kernel.py).

    evaluator = Evaluator(graph, cluster, tiles)
    undo = evaluator.move({"conv1": tiling})
    if evaluator.time(limit=best) is None:      # longer than the limit
        evaluator.restore(undo)

It does not know micro-batches, recomputation and split backwards; `simulate` does.
"""

# i: operator, v: value, p: parameter, d: device

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.compute import Compute
from raddle.costs.kept import kept
from raddle.costs.layout import OPTIMIZER_STATE
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.evaluation.durations import tile_seconds
from raddle.evaluation.kernel import LONGER, TOO_SMALL, Arena, Slots, Space, step_time
from raddle.evaluation.messages import message_rows, pair_volumes
from raddle.evaluation.network import RingBook, routes
from raddle.evaluation.regions import Regions, boxes_of, regions
from raddle.evaluation.script import outline
from raddle.evaluation.store import NOTHING, Rows, Slot
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plan.plan import BUCKET, Plan
from raddle.plan.tiling import Grid, Tiling
from raddle.program.closing import SMALL, closing
from raddle.program.holding import always_local, holding_of
from raddle.program.merging import is_local_statistics, is_partial, place_merge
from raddle.program.program import Cell, Message, Share, tensors_of_part
from raddle.program.sharing import shares_from
from raddle.simulation.tasks import OPTIMIZER_PASSES, nanoseconds

Array = np.ndarray
NO_LIMIT = np.iinfo(np.int64).max // 4
STORE = (
    512 * 2**20
)  # bytes of remembered rows, after which all but the current plan's are forgotten


@dataclass
class Tiled:
    """A tiling of operators of one space, with what is known of it."""

    number: int
    tiling: Tiling
    devices: tuple[int, ...]  # that compute it, sorted
    each: Array  # device of every tile, copies included
    copies: int
    regions: tuple[Regions, ...]


Undo = list[tuple[Any, Any, Any]]


class Evaluator:
    """The step time of a plan that changes."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        tiles: Mapping[str, Tiling],
        *,
        bn: str = "local",
        sync: str = "allreduce",
        bucket: int = BUCKET,
        optimizer: str = "sgd",
        profile: Profile | None = None,
    ) -> None:
        self.graph, self.cluster, self.bn, self.bucket = graph, cluster, bn, bucket
        self.outline = outline(graph)
        self.count = len(cluster.devices)
        self.plan = Plan({}, self.count, bn=bn, sync=sync)
        self.passes = OPTIMIZER_PASSES.get(optimizer, 7)
        self.compute = Compute(graph, self.outline.active, profile)
        self.routes, self.rings = routes(cluster), RingBook(cluster)
        self.kinds = sorted({d.kind: d for d in cluster.devices}.items())
        kinds = [kind for kind, _ in self.kinds]
        self.kind_of = np.array([kinds.index(d.kind) for d in cluster.devices])
        self.speed = np.array([d.bandwidth * d.efficiency["memory"] for d in cluster.devices])
        self.overhead = np.array([d.overhead for d in cluster.devices])
        self.tail = _tail(graph, self.outline.active)
        self.tiled: dict[tuple[int, Tiling], Tiled] = {}
        self.seconds: dict[tuple[Any, ...], list[Array]] = {}
        self.pieces: dict[tuple[int, int], tuple[Array, Array, Array]] = {}
        self.partials: dict[tuple[int, int], bool] = {}
        self.closings: dict[tuple[int, ...], frozenset[str]] = {}
        self._forget()
        self.counts = np.zeros(3, np.int64)  # of the last run: nodes, edges, nodes simulated
        self.space = self._room(4096, 16384)
        ops, values, parameters = len(graph.ops), len(self.outline.value), len(self.outline.users)
        self.slots = Slots(
            *(np.zeros((n, 2), np.int64) for n in (ops,) * 5 + (values,) * 2 + (parameters,) * 4)
        )
        self.slots.rings[:, 0] = -1
        self.load = np.zeros(self.count + len(cluster.links), np.int64)
        self.held = np.zeros(self.count, np.int64)  # bytes by device, see `memory`
        self.held_slots = np.zeros((ops + parameters, 2), np.int64)
        self.kept = _kept_values(graph, self.outline.active)
        self.keeps = 2 + OPTIMIZER_STATE.get(optimizer, 2)
        self.tiles: list[Tiled] = [None] * ops  # type: ignore[list-item]
        self.cells: list[tuple[Cell, ...]] = [()] * ops
        self.merged: list[Any] = [None] * ops  # the key of what was merged, to see what changes
        self.closed: frozenset[str] = frozenset()
        self.move(tiles)

    # -- moves -----------------------------------------------------------------------------------

    def move(self, changes: Mapping[str, Tiling]) -> Undo:
        """Gives operators other tiles; `restore` takes it back. InputError where no plan can be so."""
        if self.computes.nbytes + self.messages.nbytes > STORE:
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
        if rows is self.computes:
            np.add.at(self.load, own[:, 0], sign * own[:, 1])
        elif rows is self.sizes:
            np.add.at(self.held, own[:, 0], sign * own[:, 1])
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
            tiled = self._tiled(self.graph.ops[i], tiling)
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
        for i in changed:
            op = self.graph.ops[i]
            self._point(undo, self.slots.forward, i, self._run(op, "F"), self.computes)
            self._point(undo, self.held_slots, i, self._outputs(op), self.sizes)
            if any(out in o.active for out in op.outputs):
                self._point(undo, self.slots.backward, i, self._run(op, "B"), self.computes)
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
            there, back = self._messages(v)
            self._point(undo, self.slots.activation, v, there, self.messages)
            self._point(undo, self.slots.gradient, v, back, self.messages)
        for p in {
            o.parameter[n] for i in changed for n in self.graph.ops[i].inputs if n in o.parameter
        }:
            self._parameter(undo, p)

    # -- time ------------------------------------------------------------------------------------

    def time(self, limit: int | None = None, *, fold: bool = True) -> int | None:
        """Nanoseconds of a step; None if they are more than the limit. `fold=False` keeps all tasks."""
        limit = NO_LIMIT if limit is None else limit
        if int(self.load.max()) > limit:
            self.counts[:] = 0
            return None
        arena = Arena(self.computes.data, self.messages.data, self.amounts.data[:, 0])
        while True:
            found = step_time(
                self.count, len(self.cluster.links), self.bucket, self.outline.script, self.slots,
                arena, self.rings.arrays(), self.space, limit, fold, self.counts,
            )  # fmt: skip
            if found != TOO_SMALL:
                return None if found == LONGER else int(found)
            self.space = self._room(2 * len(self.space.nodes), 2 * len(self.space.edges))

    def _room(self, nodes: int, edges: int) -> Space:
        values, parameters = len(self.outline.value), len(self.outline.users)

        def table(rows: int, kind: Any) -> Array:
            return np.zeros((rows, self.count), kind)

        return Space(
            np.zeros((nodes, 6), np.int64), np.zeros((edges, 3), np.int64),
            table(values, np.int32), table(values, np.int32), table(values, np.int32),
            table(values, np.int64), table(parameters, np.int32), table(parameters, np.int64),
            table(parameters, np.int32), np.zeros(self.count, np.int32),
        )  # fmt: skip

    @property
    def memory(self) -> Array:
        """By device, bytes of parameters with their gradients and states, and of what the backward keeps.

        An estimate for searches: what is alive at the same time, and what was received, is told by
        costs/memory.py from a timeline.
        """
        return self.held

    # -- what is remembered ----------------------------------------------------------------------

    def _forget(self) -> None:
        self.computes, self.messages, self.amounts, self.sizes = Rows(2), Rows(5), Rows(1), Rows(2)
        self.known: dict[tuple[Any, ...], Any] = {}

    def _renew(self) -> None:
        """Forgets all rows but those of the current plan."""
        tiles = {op.name: self.tiles[i].tiling for i, op in enumerate(self.graph.ops)}
        self._forget()
        for slots in self.slots:
            slots[:] = 0
        self.slots.rings[:, 0] = -1
        self.held_slots[:] = 0
        self.load[:] = 0
        self.held[:] = 0
        self.tiled.clear()
        self.pieces.clear()
        self.partials.clear()
        self.closings.clear()
        self.tiles = [None] * len(self.tiles)  # type: ignore[list-item]
        self.merged = [None] * len(self.merged)
        self._move(tiles, [])

    def _tiled(self, op: Op, tiling: Tiling) -> Tiled:
        # Spaces are shared by operators that are alike, and live as long as the graph.
        key = (id(op.space), tiling)
        found = self.tiled.get(key)
        if found is None:
            found = Tiled(
                len(self.tiled), tiling, tuple(sorted(set(tiling.devices))),
                np.array(tiling.devices, np.int64), tiling.copies if isinstance(tiling, Grid) else 1,
                regions(op.space, tiling),
            )  # fmt: skip
            self.tiled[key] = found
        return found

    # -- computing -------------------------------------------------------------------------------

    def _run(self, op: Op, phase: str) -> Slot:
        tiled = self.tiles[self.outline.number[op.name]]
        wanted = self.compute.wanted.get((op.name, phase))
        alike = (id(op.space), op.kind, self.compute.dtypes[op.name], wanted)
        key = ("run", alike, tiled.number)
        if key not in self.known:
            seconds = self._seconds(op, tiled, phase, alike)
            self.known[key] = self.computes.add(self._by_device(tiled.each, seconds))
        return self.known[key]  # type: ignore[no-any-return]

    def _outputs(self, op: Op) -> Slot:
        """Rows of bytes that an operator's outputs keep on devices."""
        tiled = self.tiles[self.outline.number[op.name]]
        counted = tuple(name in self.kept for name in op.outputs)
        key = ("bytes", counted, op.dtypes, tiled.number)
        if key not in self.known:
            total = np.zeros(self.count, np.int64)
            for dims, name in zip(op.space.outputs, op.outputs, strict=True):
                if name in self.kept:
                    boxes = boxes_of(tiled.tiling, dims)
                    volumes = (boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1)
                    width = self.graph.values[name].dtype.itemsize
                    np.add.at(total, tiled.each, width * np.repeat(volumes, tiled.copies))
            own = np.flatnonzero(total)
            self.known[key] = self.sizes.add(np.stack([own, total[own]], axis=1))
        return self.known[key]  # type: ignore[no-any-return]

    def _seconds(self, op: Op, tiled: Tiled, phase: str, alike: tuple[Any, ...]) -> Array:
        """Of every tile, copies included, on its own device."""
        tiling = tiled.tiling
        key = (*alike, tiling.cuts if isinstance(tiling, Grid) else tiling)
        if key not in self.seconds:
            self.seconds[key] = [
                tile_seconds(self.compute, op, tiling, tiled.regions, phase, device)
                for _, device in self.kinds
            ]
        by_kind = [np.repeat(s, tiled.copies) for s in self.seconds[key]]
        if len(by_kind) == 1:
            return by_kind[0]
        return np.asarray(np.choose(self.kind_of[tiled.each], by_kind))

    def _by_device(self, devices: Array, seconds: Array) -> Array:
        own, inverse = np.unique(devices, return_inverse=True)
        total = np.zeros(len(own))
        np.add.at(total, inverse, seconds)  # in the order of the tiles
        return np.stack([own, nanoseconds(total)], axis=1)  # type: ignore[arg-type]

    def _touch(self, devices: Sequence[Sequence[int]], nbytes: Sequence[int]) -> Array:
        """Rows of devices that pass over so many bytes of their memory, by sets of devices."""
        each = np.array([d for own in devices for d in own], np.int64)
        amount = np.repeat(np.asarray(nbytes, np.float64), [len(own) for own in devices])
        return self._by_device(each, amount / self.speed[each] + self.overhead[each])

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
                lambda op: self._partial(self.outline.number[op.name]),
            )  # fmt: skip
        return self.closings[key]

    def _partial(self, i: int) -> bool:
        op, tiled = self.graph.ops[i], self.tiles[i]
        if not op.space.combine:
            return False
        key = (i, tiled.number)
        if key not in self.partials:
            self.partials[key] = is_partial(op, tiled.tiling, self.bn)
        return self.partials[key]

    def _merge(self, undo: Undo, i: int) -> bool:
        """Where an operator's results are merged; whether that has changed."""
        op, o = self.graph.ops[i], self.outline
        if not op.space.combine:
            return False
        key = None
        if self._partial(i):
            readers = {d for out in op.outputs for j, _, _ in o.readers[o.value[out]]
                       if out in self.graph.ops[j].inputs for d in self.tiles[j].devices}  # fmt: skip
            active = op.outputs[0] in o.active
            width = self.graph.values[op.outputs[0]].dtype.itemsize
            closes = op.name in self.closed
            # A number stands for a tiling and a space, so operators that are alike share what is found.
            key = ("merge", self.tiles[i].number, tuple(sorted(readers)), width, active, closes)
        if key == self.merged[i]:
            return False
        self._set(undo, self.merged, i, key)
        cells, rows, there, back = (
            ((), NOTHING, NOTHING, NOTHING) if key is None else self._place(i, key)
        )
        self._set(undo, self.cells, i, cells)
        # A merge is computed forward and, where there is a gradient, once more backward.
        twice = 2 if any(out in o.active for out in op.outputs) else 1
        for _ in range(twice - 1):
            self._carry(self.computes, tuple(self.slots.merge[i]), -1)
            self._carry(self.computes, rows, 1)
        self._point(undo, self.slots.merge, i, rows, self.computes)
        self._point(undo, self.slots.partial, i, there, self.messages)
        self._point(undo, self.slots.partial_back, i, back, self.messages)
        return True

    def _place(self, i: int, key: tuple[Any, ...]) -> tuple[tuple[Cell, ...], Slot, Slot, Slot]:
        if key in self.known:
            return self.known[key]  # type: ignore[no-any-return]
        _, _, readers, width, active, closes = key
        op, tiling = self.graph.ops[i], self.tiles[i].tiling
        cells, messages = place_merge(op, tiling, readers, width, closes=closes)
        rows = self._touch(
            [c.devices for c in cells], [(len(c.parts) + 1) * c.box.volume * width for c in cells]
        )

        def nbytes(m: Message) -> int:
            return int(m.elements * width * tensors_of_part(op, tiling.tiles[m.part].box))

        returned = messages if active and not closes else ()
        back = [Message(m.target, m.source, m.boxes, m.part) for m in returned]
        self.known[key] = (
            cells,
            self.computes.add(rows),
            self._listed([(m, nbytes(m)) for m in messages]),
            self._listed([(m, nbytes(m)) for m in back]),
        )
        return self.known[key]  # type: ignore[no-any-return]

    def _listed(self, messages: Sequence[tuple[Message, int]]) -> Slot:
        """Messages in the order in which a program has them."""
        if not messages:
            return NOTHING
        count = self.count
        ordered = sorted(messages, key=lambda x: ((x[0].target - x[0].source) % count, x[0]))
        s, t = (
            np.array(column)
            for column in zip(*((m.source, m.target) for m, _ in ordered), strict=True)
        )
        nbytes = np.array([n for _, n in ordered])
        seconds = self.routes.latency[s, t] + nbytes / self.routes.bandwidth[s, t]
        return self._add_messages(s, t, nanoseconds(seconds))

    def _add_messages(self, s: Array, t: Array, ns: Array) -> Slot:
        return self.messages.add(
            np.stack([s, t, ns, self.routes.first[s, t], self.routes.second[s, t]], axis=1)
        )

    # -- values ----------------------------------------------------------------------------------

    def _messages(self, v: int) -> tuple[Slot, Slot]:
        """Rows that bring a value to its readers, and its gradient back."""
        i, output = self.outline.made_by[v]
        op, tiled, readers = self.graph.ops[i], self.tiles[i], self.outline.readers[v]
        width = self.graph.values[op.outputs[output]].dtype.itemsize
        key = (
            "value", tiled.number, output, width, self.merged[i], is_local_statistics(op, self.bn),
            *((self.tiles[j].number, operand, graded) for j, operand, graded in readers),
        )  # fmt: skip
        if key not in self.known:
            apart = [
                r for r in readers
                if self.merged[i] is not None or not always_local(
                    tiled.tiling, op.space, output, self.tiles[r[0]].tiling,
                    self.graph.ops[r[0]].space.operands[r[1]],
                )
            ]  # fmt: skip
            self.known[key] = self._fetch(v, op, output, apart) if apart else (NOTHING, NOTHING)
        return self.known[key]  # type: ignore[no-any-return]

    def _fetch(
        self, v: int, op: Op, output: int, readers: Sequence[tuple[int, int, bool]]
    ) -> tuple[Slot, Slot]:
        boxes, targets, graded = [], [], []
        for j, operand, gives in sorted(readers, key=lambda r: not r[2]):
            tiled = self.tiles[j]
            own = tiled.regions[operand]
            keep = np.repeat(own.needed, tiled.copies)
            boxes.append(np.repeat(own.boxes, tiled.copies, axis=0)[keep])
            targets.append(tiled.each[keep])
            graded.append(np.full(int(keep.sum()), gives))
        needs, target = np.concatenate(boxes), np.concatenate(targets)
        if not len(needs):
            return NOTHING, NOTHING
        there, back = np.zeros((2, self.count, self.count), np.int64)
        pieces, holders, at = self._pieces(self.outline.made_by[v][0], output)
        room = pair_volumes(
            self.count, pieces, holders, at, needs, target, np.concatenate(graded), there, back
        )
        assert room, f"'{op.name}' is in too many pieces for a search"
        target_count = self.count * (self.count - 1)
        width = self.graph.values[op.outputs[output]].dtype.itemsize
        slots = []
        for volumes in (there, back):
            rows = np.empty((target_count, 3), np.int64)
            n = message_rows(volumes, width, self.routes.latency, self.routes.bandwidth, rows)
            slots.append(
                self._add_messages(rows[:n, 0], rows[:n, 1], rows[:n, 2]) if n else NOTHING
            )
        if slots[0][1] and is_local_statistics(op, self.bn):
            raise InputError(f"with bn: local, '{op.name}' is needed where it is not computed.")
        return slots[0], slots[1]

    def _pieces(self, i: int, output: int) -> tuple[Array, Array, Array]:
        """Boxes of a value, and who holds them."""
        op = self.graph.ops[i]
        if self.merged[i] is not None:
            return _packed(
                [(c.box, c.devices) for c in self.cells[i]], len(op.space.outputs[output])
            )
        key = (self.tiles[i].number, output)
        if key not in self.pieces:
            tiling, dims = self.tiles[i].tiling, op.space.outputs[output]
            if isinstance(tiling, Grid) and _shown(tiling, dims):
                k = tiling.copies
                self.pieces[key] = (
                    boxes_of(tiling, dims), self.tiles[i].each,
                    np.arange(0, len(tiling.devices) + k, k),
                )  # fmt: skip
                return self.pieces[key]
            held = holding_of(op.space, self.tiles[i].tiling, output)
            self.pieces[key] = _packed(held.pieces, len(op.space.outputs[output]))
        return self.pieces[key]

    # -- parameters ------------------------------------------------------------------------------

    def _parameter(self, undo: Undo, p: int) -> None:
        users = self.outline.users[p]
        tiled = [self.tiles[self.outline.number[op.name]] for op, _ in users]
        value = self.graph.values[users[0][0].inputs[users[0][1]]]
        key = (
            "parameter",
            value.shape,
            value.dtype.itemsize,
            *((t.number, k) for t, (_, k) in zip(tiled, users, strict=True)),
        )
        if key not in self.known:
            distinct = {}  # steps of a recurrent network read a weight in the same way
            for (op, operand), t in zip(users, tiled, strict=True):
                distinct[id(op.space), operand, t.number] = (op, operand)
            self.known[key] = self._share(users[0], list(distinct.values()))
        update, rings, push, pull, size = self.known[key]
        self._point(undo, self.held_slots, len(self.tiles) + p, size, self.sizes)
        self._point(undo, self.slots.update, p, update, self.computes)
        self._point(undo, self.slots.rings, p, rings, None)
        self._point(undo, self.slots.push, p, push, self.messages)
        self._point(undo, self.slots.pull, p, pull, self.messages)

    def _share(
        self, first: tuple[Op, int], users: Sequence[tuple[Op, int]]
    ) -> tuple[Slot, Slot, Slot, Slot, Slot]:
        value = self.graph.values[first[0].inputs[first[1]]]
        by_device: dict[int, dict[Box, None]] = {}
        for op, operand in users:
            tiled = self.tiles[self.outline.number[op.name]]
            own = tiled.regions[operand]
            found = [
                Box(tuple(lo), tuple(hi)) if needed else None
                for lo, hi, needed in zip(
                    own.boxes[:, :, 0].tolist(),
                    own.boxes[:, :, 1].tolist(),
                    own.needed,
                    strict=True,
                )
                for _ in range(tiled.copies)
            ]
            for d, box in zip(tiled.tiling.devices, found, strict=True):
                boxes = by_device.setdefault(d, {})
                if box is not None:
                    boxes.setdefault(box)
        shares = shares_from(value.shape, {d: list(b) for d, b in by_device.items()}, self.plan)
        width = value.dtype.itemsize
        update = self._touch(
            [s.devices if s.home < 0 else (s.home,) for s in shares],
            [self.passes * s.box.volume * width for s in shares],
        )
        rings, push, pull = (-1, 0), NOTHING, NOTHING
        shared = [s for s in shares if len({*s.devices, s.home} - {-1}) > 1]
        if self.plan.sync.startswith("server"):
            push, pull = self._served(shares, width, up=True), self._served(shares, width, up=False)
        elif shared:
            amounts: dict[tuple[int, ...], int] = {}
            for s in shared:
                amounts[s.devices] = amounts.get(s.devices, 0) + s.box.volume * width
            row, _ = self.amounts.add(np.array(list(amounts.values()))[:, None])
            rings = (self.rings.number(tuple(amounts)), row)
        sizes = np.zeros(self.count, np.int64)
        for s in shares:
            sizes[list(s.devices)] += self.keeps * s.box.volume * width
        some = np.flatnonzero(sizes)
        size = self.sizes.add(np.stack([some, sizes[some]], axis=1))
        return self.computes.add(update), rings, push, pull, size

    def _served(self, shares: Sequence[Share], width: int, *, up: bool) -> Slot:
        volumes: dict[tuple[int, int], int] = {}
        for s in shares:
            for d in s.devices:
                if d != s.home:
                    way = (d, s.home) if up else (s.home, d)
                    volumes[way] = volumes.get(way, 0) + s.box.volume
        return self._listed([(Message(a, b, ()), n * width) for (a, b), n in volumes.items()])


def _shown(grid: Grid, dims: Sequence[int]) -> bool:
    """Whether an output has all dimensions that are split, in their order: then its boxes are the tiles."""
    return list(dims) == sorted(dims) and all(
        len(cuts) == 2 or d in dims for d, cuts in enumerate(grid.cuts)
    )


def _packed(pieces: Sequence[tuple[Box, tuple[int, ...]]], rank: int) -> tuple[Array, Array, Array]:
    boxes = np.zeros((len(pieces), rank, 2), np.int64)
    for k, (box, _) in enumerate(pieces):
        boxes[k, :, 0], boxes[k, :, 1] = box.lo, box.hi
    at = np.concatenate([[0], np.cumsum([len(devices) for _, devices in pieces])])
    return boxes, np.array([d for _, devices in pieces for d in devices], np.int64), at


def _kept_values(graph: Graph, active: frozenset[str]) -> frozenset[str]:
    """Values that operators make and some backward needs."""
    found: set[str] = set()
    for op in graph.ops:
        own = kept(graph, active, op)
        found |= own.inputs
        if own.output:
            found.update(op.outputs)
    return frozenset(found)


def _tail(graph: Graph, active: frozenset[str]) -> dict[int, None]:
    """Operators whose tiles can decide how the forward closes: those near the loss (program/closing.py)."""
    near: set[str] = set()
    found: dict[int, None] = {}
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        if graph.loss in op.outputs or any(out in near for out in op.outputs):
            found[i] = None
            if all(graph.values[out].nbytes <= SMALL for out in op.outputs):
                near.update(name for name in op.inputs if name in active)
    return found
