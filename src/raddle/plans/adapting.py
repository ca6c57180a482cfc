"""From the plan of a training graph to one of the evaluation graph of the same module.

In evaluation dropout is gone, batch norms read running statistics, one operator may stand where a composite
stood, and the batch may be another. What both graphs compute stays where it is in training, so that every
device finds the parameters that it holds; what is new goes where what it reads is, so that little moves.
"""

# d: a dimension of an operator's iteration space

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from raddle.errors import InputError
from raddle.graph.box import Box, subtract
from raddle.graph.graph import Graph, Op
from raddle.graph.index import Term
from raddle.plans.plan import Plan
from raddle.plans.regions import add_boxes, add_unread
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling, even_cuts, whole
from raddle.plans.validation import validate, validate_tiling

WEIGHTS = ("parameter", "frozen")

_Places = Mapping[Box, tuple[int, ...]]  # boxes, each with the devices that have a copy of it


def adapt(plan: Plan, graph: Graph, other: Graph) -> Plan:
    """The plan of `graph` for `other`, the same module in evaluation, perhaps with another batch.

    No device reads more of a parameter than it holds in the training program. Raises InputError where
    that cannot be: an operator without a counterpart reads more of a parameter than any device holds.
    """
    validate(plan, graph)
    adapted = replace(
        plan,
        tiles=_Adapting(plan, graph, other).tiles(),
        microbatches=1,
        steps=1,
        recompute=(),
        split_backward=False,
        sums={},
        stages=(),
        schedule="",
        workers=(),
        fingerprint=other.fingerprint(),
        batch=other.batch,
        predicted={},
    )
    validate(adapted, other)
    return adapted


def resize(plan: Plan, graph: Graph, other: Graph) -> tuple[Graph, Plan]:
    """The plan of `graph` for `other`, the same graph with fewer samples: tiles keep their proportions."""
    if [op.name for op in graph.ops] != [op.name for op in other.ops]:
        raise InputError(
            f"'{graph.name}' has other operators for {other.batch} samples than for {graph.batch}: "
            "use a batch that all micro-batches share evenly."
        )

    def resized(tilings: Mapping[str, Tiling]) -> dict[str, Tiling]:
        pairs = ((a, b) for a, b in zip(graph.ops, other.ops, strict=True) if a.name in tilings)
        return {b.name: _resized(b, a, tilings[a.name], plan, graph, other) for a, b in pairs}

    return other, replace(plan, tiles=resized(plan.tiles), sums=resized(plan.sums))


def _resized(op: Op, trained: Op, tiling: Tiling, plan: Plan, graph: Graph, other: Graph) -> Tiling:
    if op.space == trained.space:
        return tiling
    for candidate in (
        _scaled(op, trained, tiling, graph.batch, other.batch),
        _carried(op, tiling, {d: d for d in range(len(op.space.dims))}),
    ):
        try:
            validate_tiling(op, candidate, plan.devices)
        except InputError:
            continue
        return candidate
    raise InputError(
        f"the tiles of '{op.name}' cannot be those of {other.batch} samples: "
        "use a batch that all micro-batches share evenly."
    )


# -- which operators do the same ------------------------------------------------------------------


def counterparts(graph: Graph, other: Graph) -> dict[str, Op]:
    """By operator of `other`, the one of `graph` that does the same: of its kind, with as many dimensions.

    Names do not tell, since numbers shift where operators are missing. Operators that read the same
    parameters match first, then those that read the same buffers, then those of the same module.
    """
    found: dict[str, Op] = {}
    taken: set[str] = set()
    undropped = _undropped(graph), _undropped(other)
    same = {name: name for name, value in other.values.items() if value.role != "op"}
    for key in (_by_weights, _by_buffers, _by_module):
        pools: dict[Hashable, list[Op]] = {}
        for op in graph.ops:
            if op.name not in taken and (k := key(graph, op)):
                pools.setdefault(k, []).append(op)
        for op in other.ops:
            k = key(other, op)
            if op.name in found or not k or not pools.get(k):
                continue
            match = _closest(op, pools[k], same, *undropped)
            pools[k].remove(match)
            taken.add(match.name)
            found[op.name] = match
            same.update(zip(op.outputs, match.outputs, strict=False))
    return found


def _what(op: Op) -> Hashable:
    # Not the letters of its dimensions: in a batch of one, the samples may have lost their `n`.
    return op.kind, op.label, tuple(dim.whole for dim in op.space.dims)


def _reads(graph: Graph, op: Op, roles: Sequence[str]) -> list[str]:
    return [i for i in op.inputs if graph.values[i].role in roles]


def _by_weights(graph: Graph, op: Op) -> Hashable:
    names = _reads(graph, op, WEIGHTS)
    return (_what(op), *names) if names else None


def _by_buffers(graph: Graph, op: Op) -> Hashable:
    names = _reads(graph, op, ["buffer"])
    return (_what(op), *names) if names else None


def _by_module(graph: Graph, op: Op) -> Hashable:
    return _what(op), op.module


def _undropped(graph: Graph) -> dict[str, str]:
    """By result of a dropout, what went in: evaluation reads that instead."""
    origin: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "dropout":
            origin[op.outputs[0]] = origin.get(op.inputs[0], op.inputs[0])
    return origin


def _closest(
    op: Op,
    pool: Sequence[Op],
    same: Mapping[str, str],
    theirs: Mapping[str, str],
    own: Mapping[str, str],
) -> Op:
    """Of the candidates, the first that reads what corresponds to most of the operands.

    Where nothing tells them apart, this is the order of appearance.
    """
    operands = [same.get(own.get(i, i)) for i in op.inputs]
    best, most = pool[0], (-1, False, 0, False)
    for candidate in pool:
        given = [theirs.get(i, i) for i in candidate.inputs]
        shared = sum(a == b for a, b in zip(operands, given, strict=False))
        line = op.line == candidate.line
        sizes = sum(a == b for a, b in zip(op.space.dims, candidate.space.dims, strict=True))
        score = shared, line, sizes, op.layer == candidate.layer
        if score > most:
            best, most = candidate, score
        if line and shared == len(operands):
            break
    return best


# -- tiles for every operator ---------------------------------------------------------------------


class _Adapting:
    def __init__(self, plan: Plan, graph: Graph, other: Graph) -> None:
        self.plan, self.graph, self.other = plan, graph, other
        self.held = _Held(plan, graph)
        self.placed: dict[str, Tiling] = {}
        self.producer = {o: (op, k) for op in other.ops for k, o in enumerate(op.outputs)}
        self.consumers = _readers(other)

    def tiles(self) -> dict[str, Tiling]:
        """Counterparts first; then, along the edges of the graph, what stands next to what is placed."""
        matched = counterparts(self.graph, self.other)
        for op in self.other.ops:
            if op.name in matched and self._is_same(op, matched[op.name]):
                self.placed[op.name] = self.plan.tiles[matched[op.name].name]
            elif op.name in matched:
                self._place(op, self._as_trained(op, matched[op.name]))
        for op in self.other.ops:
            self._place(op, self._as_producers(op))
        for op in reversed(self.other.ops):
            self._place(op, self._as_consumers(op))
        for op in self.other.ops:
            self._place(op, chain(self._as_producers(op), self._where_held(op)))
            if op.name not in self.placed:
                names = ", ".join(f"'{n}'" for n in _reads(self.other, op, WEIGHTS))
                raise InputError(
                    f"'{op.name}' of the evaluation graph reads more of {names} than any device holds "
                    "in training: evaluate the module on one device, or plan without splitting them."
                )
        return {op.name: self.placed[op.name] for op in self.other.ops}

    def _is_same(self, op: Op, trained: Op) -> bool:
        """Whether tiles of the one fit the other, and find there the parameters that it reads."""
        weights = self._weights(op)
        return op.space == trained.space and all(op.inputs[i] == trained.inputs[i] for i in weights)

    def _place(self, op: Op, candidates: Iterator[Tiling]) -> None:
        """Gives an operator the first tiles that are legal and find their parameters."""
        if op.name not in self.placed:
            fitting = (t for t in candidates if self._is_legal(op, t) and self._is_held(op, t))
            if (tiling := next(fitting, None)) is not None:
                self.placed[op.name] = tiling

    def _is_legal(self, op: Op, tiling: Tiling) -> bool:
        try:
            validate_tiling(op, tiling, self.plan.devices)
        except InputError:
            return False
        return True

    def _is_held(self, op: Op, tiling: Tiling) -> bool:
        weights = self._weights(op)
        return all(self.held.by(device, op, box, weights) for box, device in tiling.tiles)

    def _weights(self, op: Op) -> list[int]:
        """The operands that are parameters."""
        return [i for i, name in enumerate(op.inputs) if self.other.values[name].role in WEIGHTS]

    # -- candidates --------------------------------------------------------------------------------

    def _as_trained(self, op: Op, trained: Op) -> Iterator[Tiling]:
        tiling = self.plan.tiles[trained.name]
        if [dim.size for dim in op.space.dims] == [dim.size for dim in trained.space.dims]:
            yield tiling
        else:
            yield _scaled(op, trained, tiling, self.graph.batch, self.other.batch)
            # Where rows of a parameter are cut (positions), cut points stay: others do not hold them.
            yield _carried(op, tiling, {d: d for d in range(len(op.space.dims))})

    def _as_producers(self, op: Op) -> Iterator[Tiling]:
        for operand, (source, k) in self._sources(op):
            if source.name in self.placed:
                pairs = _pairs(op, operand, source.space.outputs[k])
                yield _carried(op, self.placed[source.name], pairs)

    def _as_consumers(self, op: Op) -> Iterator[Tiling]:
        for k, name in enumerate(op.outputs):
            for reader, operand in self.consumers.get(name, []):
                if reader.name in self.placed:
                    pairs = {d: r for r, d in _pairs(reader, operand, op.space.outputs[k]).items()}
                    yield _carried(op, self.placed[reader.name], pairs, spread=True)

    def _where_held(self, op: Op) -> Iterator[Tiling]:
        """Whole on a device, near what it reads if possible; else cut as its parameters are."""
        near = [d for _, (source, _) in self._sources(op) for d in self.placed[source.name].devices]
        devices = list(dict.fromkeys([*near, *range(self.plan.devices)]))
        for device in devices:
            yield whole([dim.size for dim in op.space.dims], [device])
        weights = self._weights(op)
        cuts = tuple(self.held.cuts(op, d, weights) for d in range(len(op.space.dims)))
        boxes = Grid(cuts, (0,) * math.prod(len(c) - 1 for c in cuts)).boxes
        holders = {
            box: [d for d in devices if self.held.by(d, op, box, weights)][:1] for box in boxes
        }
        if all(holders.values()):
            yield _tiling({box: tuple(found) for box, found in holders.items()})

    def _sources(self, op: Op) -> Iterator[tuple[int, tuple[Op, int]]]:
        """The operands that operators give, with those operators."""
        for operand, name in enumerate(op.inputs):
            if name in self.producer:
                yield operand, self.producer[name]


class _Held:
    """Which boxes of parameters the devices hold in training: those that they read, as `lower` has it."""

    def __init__(self, plan: Plan, graph: Graph) -> None:
        self.plan, self.graph, self.readers = plan, graph, _readers(graph)
        self.found: dict[str, dict[int, list[Box]]] = {}

    def of(self, name: str) -> dict[int, list[Box]]:
        """By device. Nothing if training never reads the parameter: it stays as anybody loads it."""
        if name not in self.found:
            held = self.found.setdefault(name, {})
            for op, operand in self.readers.get(name, []):
                add_boxes(held, op, operand, self.plan.tiles[op.name])
            if held:
                add_unread(held, self.graph.values[name].shape)
        return self.found[name]

    def by(self, device: int, op: Op, box: Box, operands: Sequence[int]) -> bool:
        """Whether a device holds what a box reads of these operands."""
        regions = op.space.regions(box) if operands else ()
        for i in operands:
            region, held = regions[i], self.of(op.inputs[i])
            if region is not None and held:
                boxes = held.get(device, ())
                if region not in boxes and subtract(region, boxes):
                    return False
        return True

    def cuts(self, op: Op, d: int, operands: Sequence[int]) -> tuple[int, ...]:
        """Where a dimension meets the edge of a box of these operands that some device holds."""
        dim = op.space.dims[d]
        points = {0, dim.size}
        for i in operands if not dim.whole else ():
            boxes = [box for held in self.of(op.inputs[i]).values() for box in held]
            for at, index in enumerate(op.space.operands[i].indices):
                if index.terms == (Term(d),) and index.den == 1 and not index.table:
                    points |= {e[at] - index.offset for box in boxes for e in (box.lo, box.hi)}
        return tuple(point for point in sorted(points) if 0 <= point <= dim.size)


def _readers(graph: Graph) -> dict[str, list[tuple[Op, int]]]:
    readers: dict[str, list[tuple[Op, int]]] = {}
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            readers.setdefault(name, []).append((op, operand))
    return readers


# -- tiles from tiles -----------------------------------------------------------------------------


def _places(tiling: Tiling) -> _Places:
    places: dict[Box, tuple[int, ...]] = {}
    for box, device in tiling.tiles:
        places[box] = (*places.get(box, ()), device)
    return places


def _tiling(places: _Places) -> Tiling:
    """The boxes that are not empty: a grid if they are one."""
    places = {box: devices for box, devices in places.items() if not box.empty}
    cuts = tuple(_points(places, d) for d in range(len(next(iter(places)).lo)))
    count = math.prod(len(c) - 1 for c in cuts)
    copies = {len(devices) for devices in places.values()}
    if count == len(places) and len(copies) == 1:
        boxes = Grid(cuts, (0,) * count).boxes
        if places.keys() == set(boxes):
            return Grid(cuts, tuple(d for box in boxes for d in places[box]), copies.pop())
    return Irregular(tuple(Tile(box, d) for box, devices in places.items() for d in devices))


def _points(places: _Places, d: int) -> tuple[int, ...]:
    """The cut points along a dimension."""
    return tuple(sorted({point for box in places for point in (box.lo[d], box.hi[d])}))


def _scaled(op: Op, trained: Op, tiling: Tiling, batch: int, new_batch: int) -> Tiling:
    """The same tiles in an iteration space of other sizes; parts that would be empty are gone."""
    places = _places(tiling)
    to: list[dict[int, int]] = []  # by dimension, cut point -> cut point
    for d, (old, new) in enumerate(zip(trained.space.dims, op.space.dims, strict=True)):
        points = _points(places, d)
        each = old.size // batch  # of a reshape: a sample's tokens, which stay together
        if (old.size, new.size) != (each * batch, each * new_batch) or any(
            p % each for p in points
        ):
            each = 1
        scaled = _scaled_points([p // each for p in points], new.size // each)
        to.append({p: each * s for p, s in zip(points, scaled, strict=True)})
    return _tiling({Box(_each(to, b.lo), _each(to, b.hi)): at for b, at in places.items()})


def _each(to: Sequence[Mapping[int, int]], point: Sequence[int]) -> tuple[int, ...]:
    return tuple(along[p] for along, p in zip(to, point, strict=True))


def _scaled_points(points: Sequence[int], size: int) -> Sequence[int]:
    """Cut points for another size: equal parts stay equal, others keep their proportions."""
    old, parts = points[-1], len(points) - 1
    if size == old:
        return points
    if tuple(points) == even_cuts(old, parts):
        return even_cuts(size, parts)
    return [(2 * point * size + old) // (2 * old) for point in points]  # rounded


def _pairs(op: Op, operand: int, dims: Sequence[int]) -> dict[int, int]:
    """Dimensions of an operator that index an operand plainly -> those that its producer has there."""
    indices = op.space.operands[operand].indices
    paired = zip(indices, dims, strict=True)
    return {index.plain: d for index, d in paired if index.plain is not None}


def _carried(op: Op, source: Tiling, pairs: Mapping[int, int], *, spread: bool = False) -> Tiling:
    """Another operator's tiles, along those dimensions of this one that are paired with its own.

    Boxes that differ in other dimensions alone become one, on the devices of the first; to `spread` what
    all of them read, on the devices of all.
    """
    sizes = [dim.size for dim in op.space.dims]
    ends = [max(box.hi[s] for box in source.boxes) for s in range(len(source.boxes[0].hi))]
    found: dict[Box, tuple[int, ...]] = {}
    for box, devices in _places(source).items():
        lo, hi = [0] * len(sizes), list(sizes)
        for d, s in pairs.items():
            if not op.space.dims[d].whole:
                lo[d] = min(box.lo[s], sizes[d])
                hi[d] = sizes[d] if box.hi[s] == ends[s] else min(box.hi[s], sizes[d])
        own = Box(tuple(lo), tuple(hi))
        before = found.get(own, ())
        found[own] = tuple(dict.fromkeys([*before, *devices])) if spread else before or devices
    # What is opaque may be random: copies of it could differ.
    return _tiling({box: at[:1] if op.opaque else at for box, at in found.items()})
