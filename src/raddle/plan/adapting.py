"""From the plan of a training graph to one of the evaluation graph of the same module.

In evaluation dropout is gone, batch norms read running statistics, fused operators stand where composites
stood, and the batch may be another. What both graphs compute stays where it is in training, so that every
device finds the parameters that it holds; what is new goes where what it reads is, so that little moves.
"""

# d: a dimension of an operator's iteration space

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from raddle.errors import InputError
from raddle.graph.box import Box, subtract
from raddle.graph.graph import Graph, Op
from raddle.graph.index import Term
from raddle.plan.plan import Plan, validate, validate_tiling
from raddle.plan.tiling import Grid, Irregular, Tile, Tiling, even_cuts, whole

WEIGHTS = ("parameter", "frozen")

_Places = Mapping[Box, tuple[int, ...]]  # boxes, each with the devices that have a copy of it


def adapt(plan: Plan, graph: Graph, other: Graph) -> Plan:
    """The plan of `graph` for `other`, the same module in evaluation, perhaps with another batch.

    No device reads more of a parameter than it holds in the training program. Raises InputError where
    that cannot be: an operator without a counterpart needs more of a parameter than any device holds.
    """
    validate(plan, graph)
    adapted = replace(
        plan,
        tiles=_Adapting(plan, graph, other).tiles(),
        microbatches=1,
        steps=1,
        recompute=(),
        split_backward=False,
        fingerprint=other.fingerprint(),
        batch=other.batch,
        predicted={},
    )
    validate(adapted, other)
    return adapted


# -- which operators do the same ---------------------------------------------------------------------


def counterparts(graph: Graph, other: Graph) -> dict[str, Op]:
    """By operator of `other`, the one of `graph` that does the same: of its kind, with as many dimensions.

    Names do not tell, since numbers shift where operators are missing. Operators that read the same
    parameters match first, then those that read the same buffers, then those of the same module.
    """
    found: dict[str, Op] = {}
    taken: set[str] = set()
    undropped = _undropped(graph), _undropped(other)
    same = {name: name for name, value in other.values.items() if value.role != "op"}
    same |= {name: used for name, used in graph.aliases.items() if name in same}
    for key in (_by_weights, _by_buffers, _by_module):
        pools: dict[Hashable, list[Op]] = {}
        for op in graph.ops:
            if op.name not in taken and (k := key(graph, op, {})):
                pools.setdefault(k, []).append(op)
        for op in other.ops:
            k = key(other, op, graph.aliases)
            if op.name in found or not k or not pools.get(k):
                continue
            match = _closest(op, pools[k], same, *undropped)
            pools[k].remove(match)
            taken.add(match.name)
            found[op.name] = match
            same.update(zip(op.outputs, match.outputs, strict=False))
    return found


def _what(op: Op) -> Hashable:
    # Not the letters of its dimensions: of one sample, a dimension may have lost its `n`.
    return op.kind, op.label, tuple(dim.whole for dim in op.space.dims)


def _reads(graph: Graph, op: Op, aliases: Mapping[str, str], roles: Sequence[str]) -> list[str]:
    return [aliases.get(i, i) for i in op.inputs if graph.values[i].role in roles]


def _by_weights(graph: Graph, op: Op, aliases: Mapping[str, str]) -> Hashable:
    names = _reads(graph, op, aliases, WEIGHTS)
    return (_what(op), *names) if names else None


def _by_buffers(graph: Graph, op: Op, aliases: Mapping[str, str]) -> Hashable:
    names = _reads(graph, op, aliases, ["buffer"])
    return (_what(op), *names) if names else None


def _by_module(graph: Graph, op: Op, aliases: Mapping[str, str]) -> Hashable:
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
    """Of the candidates, the first that reads what matches most of the operands.

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


# -- tiles for every operator ------------------------------------------------------------------------


class _Adapting:
    def __init__(self, plan: Plan, graph: Graph, other: Graph) -> None:
        self.plan, self.graph, self.other = plan, graph, other
        self.placed: dict[str, Tiling] = {}
        self.producer = {o: (op, k) for op in other.ops for k, o in enumerate(op.outputs)}
        self.consumers = _readers(other)
        self.trained = _readers(graph)
        self.held: dict[str, dict[int, list[Box]]] = {}  # by parameter and device, in training

    def tiles(self) -> dict[str, Tiling]:
        """Counterparts first, then from what is placed along the edges of the graph, either way."""
        matched = counterparts(self.graph, self.other)
        for op in self.other.ops:
            if op.name in matched:
                self._accept(op, self._of_counterpart(op, matched[op.name]))
        for op in self.other.ops:
            self._accept(op, self._of_producers(op))
        for op in reversed(self.other.ops):
            self._accept(op, self._of_consumers(op))
        for op in self.other.ops:
            self._accept(op, self._where_held(op))
            if op.name not in self.placed:
                raise InputError(
                    f"'{op.name}' of the evaluation graph reads more of {self._weights(op)} than any "
                    "device holds in training: evaluate the module on one device, or split it less in training."
                )
        return {op.name: self.placed[op.name] for op in self.other.ops}

    def _accept(self, op: Op, candidates: Iterator[Tiling]) -> None:
        """Places an operator by the first candidate that is legal and finds its parameters."""
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

    # -- candidates --------------------------------------------------------------------------------

    def _of_counterpart(self, op: Op, trained: Op) -> Iterator[Tiling]:
        tiling = self.plan.tiles[trained.name]
        if op.space.dims == trained.space.dims:
            yield tiling
        else:
            yield _scaled(op, trained, tiling, self.graph.batch, self.other.batch)
            # A dimension that indexes a parameter (positions) keeps its cuts: its rows are held there.
            yield _carried(op, tiling, {d: d for d in range(len(op.space.dims))})

    def _of_producers(self, op: Op) -> Iterator[Tiling]:
        for operand, name in enumerate(op.inputs):
            if name in self.producer:
                source, k = self.producer[name]
                if source.name in self.placed:
                    pairs = _pairs(op, operand, source.space.outputs[k])
                    yield _carried(op, self.placed[source.name], pairs)

    def _of_consumers(self, op: Op) -> Iterator[Tiling]:
        for k, name in enumerate(op.outputs):
            for reader, operand in self.consumers.get(name, []):
                if reader.name in self.placed:
                    pairs = {d: s for s, d in _pairs(reader, operand, op.space.outputs[k]).items()}
                    yield _carried(op, self.placed[reader.name], pairs, spread=True)

    def _where_held(self, op: Op) -> Iterator[Tiling]:
        """Whole on one device, near what it reads, or cut as its parameters are if none holds them."""
        near = [
            device
            for name in op.inputs
            if name in self.producer
            for device in self.placed[self.producer[name][0].name].devices
        ]
        order = list(dict.fromkeys([*near, *range(self.plan.devices)]))
        cuts = tuple(self._cuts_of_weights(op, d) for d in range(len(op.space.dims)))
        boxes = Grid(cuts, (0,) * math.prod(len(c) - 1 for c in cuts)).boxes
        holders = (next((d for d in order if self._holds(op, box, d)), -1) for box in boxes)
        yield _tiling({box: (device,) for box, device in zip(boxes, holders, strict=True)})

    def _cuts_of_weights(self, op: Op, d: int) -> tuple[int, ...]:
        """Where a dimension reaches the edge of a box that some device holds of a parameter."""
        size = op.space.dims[d].size
        points = {0, size}
        for name, access in zip(op.inputs, op.space.operands, strict=True):
            for at, index in enumerate(access.indices):
                if index.terms == (Term(d),) and index.den == 1 and not index.table:
                    edges = (e for held in self._held(name).values() for box in held for e in (box.lo[at], box.hi[at]))
                    points |= {e - index.offset for e in edges}
        return tuple(p for p in sorted(points) if 0 <= p <= size)

    # -- parameters --------------------------------------------------------------------------------

    def _weights(self, op: Op) -> str:
        names = _reads(self.other, op, {}, WEIGHTS)
        return ", ".join(f"'{name}'" for name in names)

    def _is_held(self, op: Op, tiling: Tiling) -> bool:
        return all(self._holds(op, box, device) for box, device in tiling.tiles)

    def _holds(self, op: Op, box: Box, device: int) -> bool:
        """Whether a device holds, in training, what a box reads of parameters."""
        weights = [i for i, n in enumerate(op.inputs) if self.other.values[n].role in WEIGHTS]
        regions = op.space.regions(box) if weights else ()
        for i in weights:
            region, held = regions[i], self._held(op.inputs[i])
            if region is not None and held and subtract(region, held.get(device, ())):
                return False
        return True

    def _held(self, name: str) -> dict[int, list[Box]]:
        """What each device holds of a parameter: what it reads in training, as `lower` has it.

        Empty for one that training never reads: nobody changes it, so anybody may load it.
        """
        name = self.graph.aliases.get(name, name)
        if name not in self.held:
            held = self.held.setdefault(name, {})
            for op, operand in self.trained.get(name, []):
                for box, device in self.plan.tiles[op.name].tiles:
                    boxes, region = held.setdefault(device, []), op.space.regions(box)[operand]
                    if region is not None and region not in boxes:
                        boxes.append(region)
            if held:  # what no operator reads is with the first holder
                read = dict.fromkeys(box for boxes in held.values() for box in boxes)
                held[min(held)] += subtract(Box.full(self.graph.values[name].shape), read)
        return self.held[name]


def _readers(graph: Graph) -> dict[str, list[tuple[Op, int]]]:
    readers: dict[str, list[tuple[Op, int]]] = {}
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            readers.setdefault(name, []).append((op, operand))
    return readers


def _pairs(op: Op, operand: int, dims: Sequence[int | None]) -> dict[int, int]:
    """Dimensions of an operator that index an operand plainly -> those of another for the same."""
    indices = op.space.operands[operand].indices
    return {
        index.plain: d
        for index, d in zip(indices, dims, strict=True)
        if index.plain is not None and d is not None
    }


# -- tiles from tiles --------------------------------------------------------------------------------


def _places(tiling: Tiling) -> _Places:
    places: dict[Box, tuple[int, ...]] = {}
    for box, device in tiling.tiles:
        places[box] = (*places.get(box, ()), device)
    return places


def _tiling(places: _Places) -> Tiling:
    """The boxes that are not empty: a grid if they are one."""
    places = {box: devices for box, devices in places.items() if not box.empty}
    rank = len(next(iter(places)).lo)
    cuts = tuple(tuple(_points(places, d)) for d in range(rank))
    copies = {len(devices) for devices in places.values()}
    count = math.prod(len(c) - 1 for c in cuts)
    if len(copies) == 1 and count == len(places):
        boxes = Grid(cuts, (0,) * count).boxes
        if places.keys() == set(boxes):
            return Grid(cuts, tuple(d for box in boxes for d in places[box]), copies.pop())
    return Irregular(tuple(Tile(box, d) for box, devices in places.items() for d in devices))


def _points(places: _Places, d: int) -> list[int]:
    return sorted({point for box in places for point in (box.lo[d], box.hi[d])})


def _scaled(op: Op, trained: Op, tiling: Tiling, batch: int, new_batch: int) -> Tiling:
    """The same tiles in an iteration space of another size; parts that would be empty are gone."""
    places = _places(tiling)
    to: list[dict[int, int]] = []
    for d, (old, new) in enumerate(zip(trained.space.dims, op.space.dims, strict=True)):
        points, each = _points(places, d), 1
        if old.size * new_batch == new.size * batch and old.size % batch == 0:
            each = old.size // batch  # of a reshape: a sample's tokens, which stay together
        if any(point % each for point in points):
            each = 1
        scaled = _scaled_points([p // each for p in points], new.size // each)
        to.append({p: each * s for p, s in zip(points, scaled, strict=True)})
    return _tiling({_each(box, [m.__getitem__ for m in to]): at for box, at in places.items()})


def _scaled_points(points: Sequence[int], size: int) -> Sequence[int]:
    """Cut points for another size: equal parts stay equal, others keep their proportion."""
    old, parts = points[-1], len(points) - 1
    if size == old:
        return points
    if tuple(points) == even_cuts(old, parts):
        return even_cuts(size, parts)
    return [(2 * point * size + old) // (2 * old) for point in points]


def _each(box: Box, to: Sequence[Callable[[int], int]]) -> Box:
    lo = tuple(f(a) for f, a in zip(to, box.lo, strict=True))
    return Box(lo, tuple(f(a) for f, a in zip(to, box.hi, strict=True)))


def _carried(op: Op, source: Tiling, pairs: Mapping[int, int], *, spread: bool = False) -> Tiling:
    """Another operator's tiles, along the dimensions of this one that are paired with its own.

    Boxes that differ only in other dimensions become one: with the devices of the first or, to `spread`
    what all of them read, with those of all.
    """
    ends = source.boxes[-1].hi if isinstance(source, Grid) else _ends(source)
    found: dict[Box, tuple[int, ...]] = {}
    for box, devices in _places(source).items():
        lo, hi = [0] * len(op.space.dims), [dim.size for dim in op.space.dims]
        for d, s in pairs.items():
            if not op.space.dims[d].whole:
                lo[d] = min(box.lo[s], hi[d])
                hi[d] = hi[d] if box.hi[s] == ends[s] else min(box.hi[s], hi[d])
        own = Box(tuple(lo), tuple(hi))
        if spread:
            found[own] = tuple(dict.fromkeys([*found.get(own, ()), *devices]))
        else:
            found.setdefault(own, devices)
    # What is opaque may be random: copies of it could differ.
    return _tiling({box: at[:1] if op.opaque else at for box, at in found.items()})


def _ends(tiling: Tiling) -> tuple[int, ...]:
    return tuple(map(max, zip(*(box.hi for box in tiling.boxes), strict=True)))
