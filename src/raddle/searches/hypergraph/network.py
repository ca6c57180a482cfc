"""A captured graph as layers of interchangeable filters, and the maps that are read between them.

A *layer* is what has a weight with filters: a convolution, a linear layer, all steps of a recurrent one.
Its filters are *units*; what goes channel by channel with them (batch norm, relu, pools, adds,
concatenations) follows them, so a value's channels lie where the units of its *form* do: pieces of layers,
one after the other. A map crosses to a part that reads it

    dense   all units: the parts of a layer that sums over channels
    alike   the same units: an add whose other operand lies elsewhere

The heads of an attention are a layer of their own, without a weight: its parts are taken to need all that
they are computed from. Views in between (slices, transposes) have no form: they are computed as they are
read.
"""

# l: layer; v: map; p: part

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from raddle.graph.graph import Graph, Op
from raddle.graph.ops import work
from raddle.searches.grids import batch_independent, dim_of, size_of


class ChannelPiece(NamedTuple):
    """Consecutive channels of a value: all units of a layer, in order."""

    layer: int
    units: int


Pieces = tuple[ChannelPiece, ...]


@dataclass(frozen=True)
class FilterLayer:
    """Operators that share a weight: their filters have to lie together."""

    name: str
    ops: tuple[str, ...]
    units: int  # filters
    channels: int  # that a filter sums over
    flops: int  # forward, of all filters
    parameters: int  # elements, of all filters
    unit_elements: int = 0  # elements of a unit as it is computed, before what follows


@dataclass(frozen=True)
class FeatureMap:
    """A value that layers read: what a part lacks of it, it receives."""

    name: str
    pieces: Pieces
    unit_elements: int  # of a unit that are read, for the whole batch
    dense_readers: tuple[int, ...]  # layers whose parts need all units
    elementwise_readers: tuple[
        Pieces, ...
    ]  # forms whose parts need the units that they hold themselves

    @property
    def units(self) -> int:
        return sum(piece.units for piece in self.pieces)


@dataclass(frozen=True)
class LayerNetwork:
    """Layers in the order in which they run, the maps between them, and the forms of all operators."""

    layers: tuple[FilterLayer, ...]
    maps: tuple[FeatureMap, ...]
    op_pieces: Mapping[str, Pieces]  # by operator that has channels


def build_network(graph: Graph) -> LayerNetwork:
    """The layers of a graph; what has no channels is left out."""
    return _Builder(graph).build()


class _Builder:
    """Walks over a graph in order and keeps the form of every value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fixed = batch_independent(graph)
        self.order = {o: i for i, op in enumerate(graph.ops) for o in op.outputs}
        self.layers: dict[tuple[str, int], list[Op]] = {}
        self.numbers: dict[tuple[str, int], int] = {}
        self.heads: set[int] = set()  # layers without a weight
        self.forms: dict[str, Pieces] = {}  # of values
        self.origins: dict[
            str, tuple[str, ...]
        ] = {}  # of values without: those with, that they show
        self.of_ops: dict[str, Pieces] = {}
        self.touched: dict[str, int] = {}  # elements of values that are read: a stride skips some
        self.dense: dict[str, dict[int, None]] = {}
        self.alike: dict[str, dict[Pieces, None]] = {}

    def build(self) -> LayerNetwork:
        for op in self.graph.ops:
            if op.name not in self.fixed:
                self._visit(op)
        layers = tuple(self._layer(ops) for ops in self.layers.values())
        read = [v for v in self.forms if v in self.dense or v in self.alike]
        return LayerNetwork(layers, tuple(self._map(v) for v in read), self.of_ops)

    def _visit(self, op: Op) -> None:
        form = self._form(op)
        shown = tuple(dict.fromkeys(v for i in op.inputs for v in self._shown(i)))
        if form is None:
            self.origins.update(dict.fromkeys(op.outputs, shown))
            return
        self.of_ops[op.name] = form
        for operand, value in enumerate(op.inputs):
            if value in self.forms:
                self._read(op, operand, value, form)
            for origin in self.origins.get(value, ()):
                self._read_all(origin, form)
        units = sum(piece.units for piece in form)
        for output in op.outputs:
            size = self._channels(output)
            if size and size % units == 0:
                self.forms[output] = form

    def _shown(self, value: str) -> tuple[str, ...]:
        return (value,) if value in self.forms else self.origins.get(value, ())

    def _form(self, op: Op) -> Pieces | None:
        """A layer's own units, or those of what an operator follows."""
        key = self._weight(op)
        form = self._followed(op) if key is None else None
        c = dim_of(op, "c")
        heads = op.space.is_product or op.traits.family == "attention"
        if key is None and form is None and c is not None and heads:
            key = op.name, op.space.dims[c].size
            self.heads.add(len(self.numbers))
        if key is not None:
            self.layers.setdefault(key, []).append(op)
            number = self.numbers.setdefault(key, len(self.numbers))
            return (ChannelPiece(number, key[1]),)
        if form is not None and op.space.is_product and form[0].layer in self.heads:
            self.layers[list(self.layers)[form[0].layer]].append(op)  # what heads go on with
        return form

    def _weight(self, op: Op) -> tuple[str, int] | None:
        """The weight whose filters an operator computes, and how many there are."""
        c = dim_of(op, "c")
        if c is None or self.graph.dim_kinds(op)[c] != "P" or not op.space.reduced_dims:
            return None
        weight = next(i for i in op.inputs if self.graph.values[i].role in ("parameter", "frozen"))
        return weight, op.space.dims[c].size

    def _followed(self, op: Op) -> Pieces | None:
        """The form of what an operator reads; of several, the latest: it is on its way anyway."""
        read = [v for v in op.inputs if v in self.forms]
        size = size_of(op, "c")
        if not read or dim_of(op, "c") is None:
            return None
        if op.kind == "cat" and sum(self._channels(v) for v in read) == size:
            return tuple(piece for v in read for piece in self.forms[v])
        able = [v for v in read if size % sum(p.units for p in self.forms[v]) == 0]
        return self.forms[max(able, key=lambda v: self.order[v])] if able else None

    def _read(self, op: Op, operand: int, value: str, form: Pieces) -> None:
        if op.kind == "cat" and all(piece in form for piece in self.forms[value]):
            return
        touched = self._touched(op, operand, value)
        self.touched[value] = max(touched, self.touched.get(value, 0))
        if self._weight(op) is not None or not self._unit_by_unit(op, operand, value, form):
            self._read_all(value, form)
        elif self.forms[value] != form:
            self.alike.setdefault(value, {})[form] = None

    def _read_all(self, value: str, form: Pieces) -> None:
        self.dense.setdefault(value, {}).update(dict.fromkeys(piece.layer for piece in form))

    def _touched(self, op: Op, operand: int, value: str) -> int:
        """Elements of a value that an operator reads if it reads all channels."""
        box = [(0, dim.size) for dim in op.space.dims]
        ranges = (index.range(box) for index in op.space.operands[operand].indices)
        extents = [high - low for low, high in ranges]
        extents[self.graph.values[value].letters.index("c")] = self._channels(value)
        return math.prod(extents)

    def _unit_by_unit(self, op: Op, operand: int, value: str, form: Pieces) -> bool:
        """Whether a unit of the operator reads the same unit of an operand, and no other."""
        own, read = sum(p.units for p in form), sum(p.units for p in self.forms[value])
        c = dim_of(op, "c")
        if own != read or c is None:
            return False
        at = self.graph.values[value].letters.index("c")
        index = op.space.operands[operand].indices[at]
        each, theirs = op.space.dims[c].size // own, self._channels(value) // read
        box = [(0, dim.size) for dim in op.space.dims]
        for unit in {0, own // 2, own - 1}:
            box[c] = (unit * each, (unit + 1) * each)
            if index.range(box) != (unit * theirs, (unit + 1) * theirs):
                return False
        return True

    def _channels(self, value: str) -> int:
        """How many channels a value has; 0 where it has none."""
        known = self.graph.values[value]
        return known.shape[known.letters.index("c")] if "c" in known.letters else 0

    def _layer(self, ops: Sequence[Op]) -> FilterLayer:
        own = {i for op in ops for i in op.inputs if self.graph.values[i].role == "parameter"}
        return FilterLayer(
            ops[0].name,
            tuple(op.name for op in ops),
            size_of(ops[0], "c"),
            min(size_of(op, "k") for op in ops),
            sum(work(op, op.space.full).flops for op in ops),
            sum(_count(self.graph, name) for name in own),
            sum(_count(self.graph, op.outputs[0]) for op in ops) // size_of(ops[0], "c"),
        )

    def _map(self, value: str) -> FeatureMap:
        form = self.forms[value]
        return FeatureMap(
            value,
            form,
            self.touched.get(value, _count(self.graph, value)) // sum(p.units for p in form),
            tuple(self.dense.get(value, ())),
            tuple(self.alike.get(value, ())),
        )


def _count(graph: Graph, value: str) -> int:
    return graph.values[value].nbytes // graph.values[value].dtype.itemsize


def merge_layers(network: LayerNetwork, ops: Collection[str]) -> LayerNetwork:
    """The network with layers of the given operators as one unit each, as the thesis has connected layers.

    A layer whose map is concatenated with others stays as it is.
    """
    pieces = {p.layer for v in network.maps if len(v.pieces) > 1 for p in v.pieces}
    chosen = {l for l, own in enumerate(network.layers) if ops & set(own.ops) and l not in pieces}

    def form(own: Pieces) -> Pieces:
        return tuple(ChannelPiece(p.layer, 1) if p.layer in chosen else p for p in own)

    def read(v: FeatureMap) -> FeatureMap:
        units = v.units if v.pieces[0].layer in chosen else 1
        alike = tuple(form(other) for other in v.elementwise_readers)
        return replace(
            v,
            pieces=form(v.pieces),
            unit_elements=v.unit_elements * units,
            elementwise_readers=alike,
        )

    return LayerNetwork(
        tuple(
            replace(own, units=1, unit_elements=own.unit_elements * own.units)
            if l in chosen
            else own
            for l, own in enumerate(network.layers)
        ),
        tuple(read(v) for v in network.maps),
        {op: form(own) for op, own in network.op_pieces.items()},
    )
