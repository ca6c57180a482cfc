"""Makes the rows of a plan: what devices compute, send, sum and keep of an operator, value or parameter.

Everything is remembered by what it depends on. A tiling with its space has a number, so operators that are
alike share what is found.
"""

# d: device

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.compute import Compute, memory_speed, pass_seconds
from raddle.costs.kept import kept
from raddle.costs.links import transfer_seconds
from raddle.costs.natives import signature
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op, Value
from raddle.plans.optimizers import optimizer_costs
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid, Tiling
from raddle.program.holding import always_local, holding_of, in_turn
from raddle.program.merging import is_local_statistics, is_partial, merged_bytes, place_merge
from raddle.program.program import Cell, Message, Share, sum_width, tensors_of_part
from raddle.program.sharing import shares_from
from raddle.simulation.fast.durations import tile_seconds
from raddle.simulation.fast.messages import message_rows, pair_volumes
from raddle.simulation.fast.network import RingBook, handling, of_messages, routes
from raddle.simulation.fast.regions import Regions, boxes_of, regions
from raddle.simulation.fast.store import NOTHING, Rows, Slot
from raddle.simulation.nanoseconds import nanoseconds

Array = np.ndarray


@dataclass
class Tiled:
    """A tiling of operators of one space, with what is known of it."""

    number: int
    tiling: Tiling
    devices: tuple[int, ...]  # that compute it, sorted
    each: Array  # device of every tile, copies included
    copies: int
    regions: tuple[Regions, ...]


class MergeKey(NamedTuple):
    """What merging partial results depends on."""

    number: int  # of the tiling
    readers: tuple[int, ...]  # devices
    width: int  # bytes of an element
    active: bool  # whether there is a gradient
    closes: bool  # program/closing.py


class Made(NamedTuple):
    """An output of an operator, and how it was merged, if it was."""

    op: Op
    output: int
    tiled: Tiled
    merged: MergeKey | None
    cells: tuple[Cell, ...]


class Reader(NamedTuple):
    """An operand of an operator; `graded` says that its gradient goes back."""

    op: Op
    operand: int
    graded: bool
    tiled: Tiled


class Maker:
    """Rows, and what is known of the machine that they are for."""

    def __init__(
        self, graph: Graph, cluster: Cluster, active: frozenset[str], plan: Plan,
        profile: Profile | None,
    ) -> None:  # fmt: skip
        self.graph, self.cluster, self.count = graph, cluster, plan.devices
        self.plan, self.bn, self.sync = plan, plan.bn, plan.syncing
        self.optimizer = optimizer_costs(plan.optimizer)
        self.kept = _kept_values(graph, active)
        self.compute = Compute(graph, active, profile, bn=self.bn)
        self.apart = Compute(graph, active, profile, bn=self.bn, natives={})
        self.routes, self.rings = routes(cluster), RingBook(cluster)
        self.handling = handling(cluster)
        self.kinds = sorted({d.kind: d for d in cluster.devices}.items())
        kinds = [kind for kind, _ in self.kinds]
        self.kind_of = np.array([kinds.index(d.kind) for d in cluster.devices])
        self.speed = np.array([memory_speed(d) for d in cluster.devices])
        self.overhead = np.array([d.overhead for d in cluster.devices])
        self.seconds: dict[tuple[Any, ...], list[Array]] = {}
        self.forget()

    def forget(self) -> None:
        """Begins with no rows."""
        self.computes, self.messages, self.amounts, self.sizes = Rows(2), Rows(7), Rows(2), Rows(2)
        self.synced = Rows(10)
        self.known: dict[Any, Any] = {}
        self.numbered: dict[tuple[int, Tiling], Tiled] = {}
        self.pieces: dict[tuple[int, int], tuple[Array, Array, Array]] = {}
        self.partials: dict[tuple[str, int], bool] = {}
        self.signatures: dict[int, object] = {}

    def tiled(self, op: Op, tiling: Tiling) -> Tiled:
        # Spaces are shared by operators that are alike, and live as long as the graph.
        key = (id(op.space), tiling)
        found = self.numbered.get(key)
        if found is None:
            found = Tiled(
                len(self.numbered), tiling, tuple(sorted(set(tiling.devices))),
                np.array(tiling.devices, np.int64), tiling.copies if isinstance(tiling, Grid) else 1,
                regions(op.space, tiling),
            )  # fmt: skip
            self.numbered[key] = found
        return found

    def signature(self, op: Op, tiled: Tiled) -> object:
        if tiled.number not in self.signatures:
            self.signatures[tiled.number] = signature(op, tiled.tiling)
        return self.signatures[tiled.number]

    # -- computing -------------------------------------------------------------------------------

    def run(self, op: Op, tiled: Tiled, phase: str, together: bool) -> Slot:
        """Rows of what devices compute of an operator, forward or backward; alone, or in a composite."""
        compute = self.compute if together else self.apart
        alike = compute.alike(op, phase)
        key = ("run", alike, tiled.number)
        if key not in self.known:
            seconds = self._seconds(compute, op, tiled, phase, alike)
            self.known[key] = self.computes.add(self._by_device(tiled.each, seconds))
        return self.known[key]  # type: ignore[no-any-return]

    def outputs(self, op: Op, tiled: Tiled) -> Slot:
        """Rows of bytes that an operator's outputs keep on devices."""
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

    def _seconds(
        self, compute: Compute, op: Op, tiled: Tiled, phase: str, alike: tuple[Any, ...]
    ) -> Array:
        """Of every tile, copies included, on its own device."""
        tiling = tiled.tiling
        key = (*alike, tiling.cuts if isinstance(tiling, Grid) else tiling)
        if key not in self.seconds:
            self.seconds[key] = [
                tile_seconds(compute, op, tiling, tiled.regions, phase, device)
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
        return self._by_device(each, pass_seconds(amount, self.speed[each], self.overhead[each]))

    # -- partial results -------------------------------------------------------------------------

    def partial(self, op: Op, tiled: Tiled) -> bool:
        """Whether tiles of an operator give partial results."""
        if not op.space.combine:
            return False
        key = (op.name, tiled.number)
        if key not in self.partials:
            self.partials[key] = is_partial(op, tiled.tiling, self.bn)
        return self.partials[key]

    def merge(
        self, op: Op, tiled: Tiled, key: MergeKey
    ) -> tuple[tuple[Cell, ...], Slot, Slot, Slot]:
        """Cells of an operator's results, what merging them takes, and messages there and back."""
        if key in self.known:
            return self.known[key]  # type: ignore[no-any-return]
        tiling, width = tiled.tiling, key.width
        cells, messages = place_merge(op, tiling, key.readers, width, closes=key.closes)
        rows = self._touch([c.devices for c in cells], [merged_bytes(c, width) for c in cells])

        def nbytes(m: Message) -> int:
            return int(m.elements * width * tensors_of_part(op, tiling.tiles[m.part].box))

        returned = messages if key.active and not key.closes else ()
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
        nbytes_of = dict(messages)
        ordered = in_turn(nbytes_of, self.count)
        s, t = (
            np.array(column)
            for column in zip(*((m.source, m.target) for m in ordered), strict=True)
        )
        nbytes = np.array([nbytes_of[m] for m in ordered])
        seconds = transfer_seconds(self.routes.latency[s, t], self.routes.bandwidth[s, t], nbytes)
        return self._add_messages(s, t, nanoseconds(seconds), nbytes)

    def _add_messages(self, s: Array, t: Array, ns: Array, nbytes: Array) -> Slot:
        held = self.routes.first[s, t], self.routes.second[s, t]
        ends = [of_messages(self.handling, d, nbytes) for d in (s, t)]
        return self.messages.add(np.stack([s, t, ns, *held, *ends], axis=1))

    # -- values ----------------------------------------------------------------------------------

    def value(self, made: Made, readers: Sequence[Reader]) -> tuple[Slot, Slot]:
        """Rows that bring a value to its readers, and its gradient back."""
        op, output, tiled = made.op, made.output, made.tiled
        width = self.graph.values[op.outputs[output]].dtype.itemsize
        key = (
            "value", tiled.number, output, width, made.merged, is_local_statistics(op, self.bn),
            *((r.tiled.number, r.operand, r.graded) for r in readers),
        )  # fmt: skip
        if key not in self.known:
            apart = [
                r for r in readers
                if made.merged is not None or not always_local(
                    tiled.tiling, op.space, output, r.tiled.tiling, r.op.space.operands[r.operand]
                )
            ]  # fmt: skip
            self.known[key] = self._fetch(made, apart, width) if apart else (NOTHING, NOTHING)
        return self.known[key]  # type: ignore[no-any-return]

    def _fetch(self, made: Made, readers: Sequence[Reader], width: int) -> tuple[Slot, Slot]:
        boxes, targets, graded = [], [], []
        for r in sorted(readers, key=lambda r: not r.graded):
            own = r.tiled.regions[r.operand]
            keep = np.repeat(own.needed, r.tiled.copies)
            boxes.append(np.repeat(own.boxes, r.tiled.copies, axis=0)[keep])
            targets.append(r.tiled.each[keep])
            graded.append(np.full(int(keep.sum()), r.graded))
        needs, target = np.concatenate(boxes), np.concatenate(targets)
        if not len(needs):
            return NOTHING, NOTHING
        there, back = np.zeros((2, self.count, self.count), np.int64)
        pieces, holders, at = self._pieces(made)
        room = pair_volumes(
            self.count, pieces, holders, at, needs, target, np.concatenate(graded), there, back
        )
        assert room, f"'{made.op.name}' is in too many pieces for a search"
        slots = []
        for volumes in (there, back):
            rows = np.empty((self.count * (self.count - 1), 4), np.int64)
            n = message_rows(volumes, width, self.routes.latency, self.routes.bandwidth, rows)
            slots.append(self._add_messages(*rows[:n].T) if n else NOTHING)
        if slots[0][1] and is_local_statistics(made.op, self.bn):
            raise InputError(
                f"with bn: local, '{made.op.name}' is needed where it is not computed."
            )
        return slots[0], slots[1]

    def _pieces(self, made: Made) -> tuple[Array, Array, Array]:
        """Boxes of a value, and who holds them."""
        tiling, dims = made.tiled.tiling, made.op.space.outputs[made.output]
        if made.merged is not None:
            return _packed([(c.box, c.devices) for c in made.cells], len(dims))
        key = (made.tiled.number, made.output)
        if key not in self.pieces:
            if isinstance(tiling, Grid) and _shown(tiling, dims):
                at = np.arange(0, len(tiling.devices) + tiling.copies, tiling.copies)
                self.pieces[key] = boxes_of(tiling, dims), made.tiled.each, at
            else:
                held = holding_of(made.op.space, tiling, made.output)
                self.pieces[key] = _packed(held.pieces, len(dims))
        return self.pieces[key]

    # -- parameters ------------------------------------------------------------------------------

    def parameter(self, value: Value, users: Sequence[Reader]) -> tuple[Slot, Slot]:
        """Rows of what is synchronised of it, and of its bytes."""
        used = [(r.tiled.number, r.operand) for r in users]
        key = ("parameter", value.shape, value.dtype.itemsize, *used)
        if key not in self.known:
            # Steps of a recurrent network read a weight in the same way.
            distinct = dict(zip(used, users, strict=True))
            self.known[key] = self._share(value, list(distinct.values()))
        return self.known[key]  # type: ignore[no-any-return]

    def _share(self, value: Value, users: Sequence[Reader]) -> tuple[Slot, Slot]:
        by_device: dict[int, dict[Box, None]] = {}
        for r in users:
            tiled, own = r.tiled, r.tiled.regions[r.operand]
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
            [s.updaters for s in shares],
            [self.optimizer.passes * s.box.volume * width for s in shares],
        )
        rings, push, pull = (-1, 0), NOTHING, NOTHING
        shared = [s for s in shares if s.travels]
        if self.sync.inline:
            push, pull = self._served(shares, width, up=True), self._served(shares, width, up=False)
        elif shared:
            amounts: dict[tuple[int, ...], int] = {}
            for s in shared:
                amounts[s.devices] = amounts.get(s.devices, 0) + s.box.volume
            volumes = np.array(list(amounts.values()))
            sent = sum_width(self.sync, value.dtype.itemsize)
            row, _ = self.amounts.add(np.stack([volumes * sent, volumes * width], axis=1))
            rings = (self.rings.number(tuple(amounts)), row)
        sizes = np.zeros(self.count, np.int64)
        for s in shares:
            sizes[list(s.devices)] += self.optimizer.held * s.box.volume * width
        some = np.flatnonzero(sizes)
        size = self.sizes.add(np.stack([some, sizes[some]], axis=1))
        synced = [*push, *self.computes.add(update), *pull, *rings, bool(shared), 1]
        return self.synced.add(np.array([synced])), size

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
