"""Turns a captured graph into layers of interchangeable filters, and the feature maps between them.

The partitions of this package (__init__.py) distribute these filters, or their input channels, over parts.
A *layer* is all operators that share a weight with filters: a convolution, a linear layer, all time steps
of a recurrent layer. A *unit* is one of its filters. Operators that work channel by channel (batch norm,
relu, pools, adds, concatenations) run where their channels are. So the channels of any value are *pieces*:
the units of one layer, then the units of the next. Example: the value cat(conv1, conv2) has the pieces
(conv1, 64 units) and (conv2, 32 units).

A *part* is what one device gets. A *feature map* (short: map) is a value that layers read. A part receives
the units of a map that it needs and does not have:

    a dense reader         needs all units: a layer, which sums over all input channels
    an elementwise reader  needs the same units that it has itself: an add, whose other operand may be
                           in another part

The heads of an attention form a layer without a weight. The model assumes that each of its parts needs all
units of the layer's inputs. Views before it (slices, transposes) have no pieces; they are computed where
they are read.
"""

# l: layer; v: map, or the name of a value; p: piece; c, k: letters of the channels and of the summed input
# channels. dim_of(op, "c"): the position of c among the operator's dimensions, None if it has no c

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
    """Consecutive channels of a value: all units of one layer, in order."""

    layer: int  # index into LayerNetwork.layers
    units: int


Pieces = tuple[ChannelPiece, ...]  # all channels of a value or an operator, in order


@dataclass(frozen=True)
class NetworkLayer:
    """Operators that share a weight: each filter is in the same part for all of them."""

    name: str
    ops: tuple[str, ...]
    units: int  # filters
    channels: int  # input channels that a filter sums over
    flops: int  # of all filters in a forward
    parameters: int  # elements of all filters; 0 for attention heads
    unit_elements: int = 0  # output elements of one unit for the whole batch, before pools


@dataclass(frozen=True)
class FeatureMap:
    """A value that layers read. A part receives the units that it needs and does not have."""

    name: str
    pieces: Pieces
    unit_elements: int  # elements of one unit that are read, for the whole batch
    dense_readers: tuple[int, ...]  # layers whose parts need all units
    # For each elementwise reader, the pieces of that operator: a part that has unit i of the operator
    # needs unit i of this map.
    elementwise_readers: tuple[Pieces, ...]

    @property
    def units(self) -> int:
        """The number of units of all pieces."""
        return sum(piece.units for piece in self.pieces)


@dataclass(frozen=True)
class LayerNetwork:
    """Layers in the order in which they run, the maps between them, and the pieces of all operators."""

    layers: tuple[NetworkLayer, ...]
    maps: tuple[FeatureMap, ...]
    op_pieces: Mapping[str, Pieces]  # by name of an operator that has channels


def build_network(graph: Graph) -> LayerNetwork:
    """Returns the layers and maps of a graph; operators without channels are left out."""
    return _NetworkBuilder(graph).build()


class _NetworkBuilder:
    """Visits the operators in order and finds the pieces of every value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.independent_ops = batch_independent(graph)  # names of operators that read no samples
        # For each value: the position of the operator that computes it
        self.order = {o: i for i, op in enumerate(graph.ops) for o in op.outputs}
        # The key of a layer: its weight (of heads: their first operator), and its number of units
        self.layers: dict[tuple[str, int], list[Op]] = {}
        self.layer_numbers: dict[tuple[str, int], int] = {}
        self.head_layers: set[int] = set()  # numbers of layers without a weight: attention heads
        self.value_pieces: dict[str, Pieces] = {}
        # For a value without pieces: the values with pieces that it is a view of.
        self.view_sources: dict[str, tuple[str, ...]] = {}
        self.op_pieces: dict[str, Pieces] = {}
        # Elements of a value that are read; a strided convolution skips some.
        self.elements_read: dict[str, int] = {}
        # For each value, as ordered sets: numbers of layers; pieces of operators
        self.dense_readers: dict[str, dict[int, None]] = {}
        self.elementwise_readers: dict[str, dict[Pieces, None]] = {}

    def build(self) -> LayerNetwork:
        """Visits all operators that read samples, and returns the network."""
        for op in self.graph.ops:
            if op.name not in self.independent_ops:
                self._visit(op)
        layers = tuple(self._layer(ops) for ops in self.layers.values())
        read_values = [
            v for v in self.value_pieces if v in self.dense_readers or v in self.elementwise_readers
        ]
        return LayerNetwork(layers, tuple(self._map(v) for v in read_values), self.op_pieces)

    def _visit(self, op: Op) -> None:
        """Enters an operator: its pieces, those of its outputs, and the values that it reads."""
        pieces = self._op_pieces(op)
        sources = tuple(dict.fromkeys(v for i in op.inputs for v in self._sources(i)))
        if pieces is None:
            self.view_sources.update(dict.fromkeys(op.outputs, sources))
            return
        self.op_pieces[op.name] = pieces
        for operand, value in enumerate(op.inputs):
            if value in self.value_pieces:
                self._add_reader(op, operand, value, pieces)
            for source in self.view_sources.get(value, ()):
                self._add_dense_reader(source, pieces)
        units = sum(piece.units for piece in pieces)
        for output in op.outputs:
            size = self._channels(output)
            if size and size % units == 0:  # a flatten may make several channels of a unit
                self.value_pieces[output] = pieces

    def _sources(self, value: str) -> tuple[str, ...]:
        """Returns the values with pieces that a value consists of: itself, or those it is a view of."""
        return (value,) if value in self.value_pieces else self.view_sources.get(value, ())

    def _op_pieces(self, op: Op) -> Pieces | None:
        """Returns the pieces of an operator: the units of its layer, or the pieces of the input that it
        follows (_input_pieces). Adds the operator to its layer, if it has one."""
        key = self._weight_and_size(op)
        pieces = self._input_pieces(op) if key is None else None
        c = dim_of(op, "c")
        # is_product: the operator multiplies two activations, such as queries and keys
        is_attention = op.space.is_product or op.traits.family == "attention"
        if key is None and pieces is None and c is not None and is_attention:
            key = op.name, op.space.dims[c].size
            self.head_layers.add(len(self.layer_numbers))
        if key is not None:
            self.layers.setdefault(key, []).append(op)
            layer = self.layer_numbers.setdefault(key, len(self.layer_numbers))
            return (ChannelPiece(layer, key[1]),)
        if pieces is not None and op.space.is_product and pieces[0].layer in self.head_layers:
            # The next product of the same heads (attention weights times values) joins their layer.
            key = list(self.layers)[pieces[0].layer]
            self.layers[key].append(op)
        return pieces

    def _weight_and_size(self, op: Op) -> tuple[str, int] | None:
        """Returns the weight whose filters an operator computes, and the number of filters."""
        c = dim_of(op, "c")
        # P: a dimension of a parameter. Reduced: the operator sums over input channels.
        if c is None or self.graph.dim_kinds(op)[c] != "P" or not op.space.reduced_dims:
            return None
        # frozen: a parameter that is not trained
        weight = next(i for i in op.inputs if self.graph.values[i].role in ("parameter", "frozen"))
        return weight, op.space.dims[c].size

    def _input_pieces(self, op: Op) -> Pieces | None:
        """Returns the pieces of the input that an operator follows: it runs where that input is.

        Of several inputs it follows the one computed last; the others are ready earlier and can be sent.
        """
        inputs = [v for v in op.inputs if v in self.value_pieces]
        size = size_of(op, "c")
        if not inputs or dim_of(op, "c") is None:
            return None
        if op.kind == "cat" and sum(self._channels(v) for v in inputs) == size:
            return tuple(piece for v in inputs for piece in self.value_pieces[v])
        matching = [v for v in inputs if size % sum(p.units for p in self.value_pieces[v]) == 0]
        return self.value_pieces[max(matching, key=lambda v: self.order[v])] if matching else None

    def _add_reader(self, op: Op, operand: int, value: str, pieces: Pieces) -> None:
        """Enters an operator that reads a value: as a dense or as an elementwise reader.

        pieces: of the operator. An elementwise reader with the same pieces as the value receives nothing,
        so it is not entered.
        """
        if op.kind == "cat" and all(piece in pieces for piece in self.value_pieces[value]):
            return  # a concatenation runs where its inputs are
        count = self._count_read(op, operand, value)
        self.elements_read[value] = max(count, self.elements_read.get(value, 0))
        if self._weight_and_size(op) is not None or not self._is_elementwise(
            op, operand, value, pieces
        ):
            self._add_dense_reader(value, pieces)
        elif self.value_pieces[value] != pieces:
            self.elementwise_readers.setdefault(value, {})[pieces] = None

    def _add_dense_reader(self, value: str, pieces: Pieces) -> None:
        """Enters the layers of `pieces` as dense readers of a value."""
        self.dense_readers.setdefault(value, {}).update(
            dict.fromkeys(piece.layer for piece in pieces)
        )

    def _count_read(self, op: Op, operand: int, value: str) -> int:
        """Returns how many elements of a value an operator reads if it reads all channels."""
        box = [(0, dim.size) for dim in op.space.dims]
        # index.range: which positions of one dimension of the operand the box reads (begin, end)
        ranges = (index.range(box) for index in op.space.operands[operand].indices)
        extents = [high - low for low, high in ranges]
        extents[self.graph.values[value].letters.index("c")] = self._channels(value)
        return math.prod(extents)

    def _is_elementwise(self, op: Op, operand: int, value: str, pieces: Pieces) -> bool:
        """Whether unit i of the operator reads unit i of the operand, and no other."""
        op_units, value_units = (
            sum(p.units for p in pieces),
            sum(p.units for p in self.value_pieces[value]),
        )
        c = dim_of(op, "c")
        if op_units != value_units or c is None:
            return False
        position = self.graph.values[value].letters.index("c")
        # Which channels of the operand a box of the operator reads
        index = op.space.operands[operand].indices[position]
        op_channels, value_channels = (
            op.space.dims[c].size // op_units,
            self._channels(value) // value_units,
        )
        box = [(0, dim.size) for dim in op.space.dims]
        # Three units are checked: the first, the middle and the last.
        for unit in {0, op_units // 2, op_units - 1}:
            box[c] = (unit * op_channels, (unit + 1) * op_channels)
            if index.range(box) != (unit * value_channels, (unit + 1) * value_channels):
                return False
        return True

    def _channels(self, value: str) -> int:
        """Returns the number of channels of a value; 0 if it has no channel dimension."""
        tensor = self.graph.values[value]
        return tensor.shape[tensor.letters.index("c")] if "c" in tensor.letters else 0

    def _layer(self, ops: Sequence[Op]) -> NetworkLayer:
        """Returns the layer of the operators that share a weight."""
        weights = {i for op in ops for i in op.inputs if self.graph.values[i].role == "parameter"}
        return NetworkLayer(
            ops[0].name,
            tuple(op.name for op in ops),
            size_of(ops[0], "c"),
            min(size_of(op, "k") for op in ops),
            sum(work(op, op.space.full).flops for op in ops),
            sum(_num_elements(self.graph, name) for name in weights),
            sum(_num_elements(self.graph, op.outputs[0]) for op in ops) // size_of(ops[0], "c"),
        )

    def _map(self, value: str) -> FeatureMap:
        """Returns a value that layers read, with its pieces and readers."""
        pieces = self.value_pieces[value]
        return FeatureMap(
            value,
            pieces,
            self.elements_read.get(value, _num_elements(self.graph, value))
            // sum(p.units for p in pieces),
            tuple(self.dense_readers.get(value, ())),
            tuple(self.elementwise_readers.get(value, ())),
        )


def _num_elements(graph: Graph, value: str) -> int:
    """Returns the number of elements of a value."""
    return graph.values[value].nbytes // graph.values[value].dtype.itemsize


def merge_layers(network: LayerNetwork, ops: Collection[str]) -> LayerNetwork:
    """Returns the network with each layer of the given operators as a single unit.

    The thesis (docs/papers.md) makes each fully connected layer a single unit. A layer whose map is
    concatenated with others is unchanged.
    """
    concatenated = {p.layer for v in network.maps if len(v.pieces) > 1 for p in v.pieces}
    merged = {
        l
        for l, layer in enumerate(network.layers)
        if ops & set(layer.ops) and l not in concatenated
    }

    def merge_pieces(pieces: Pieces) -> Pieces:
        return tuple(ChannelPiece(p.layer, 1) if p.layer in merged else p for p in pieces)

    def merge_map(v: FeatureMap) -> FeatureMap:
        units = v.units if v.pieces[0].layer in merged else 1
        readers = tuple(merge_pieces(reader) for reader in v.elementwise_readers)
        return replace(
            v,
            pieces=merge_pieces(v.pieces),
            unit_elements=v.unit_elements * units,
            elementwise_readers=readers,
        )

    return LayerNetwork(
        tuple(
            replace(
                filter_layer, units=1, unit_elements=filter_layer.unit_elements * filter_layer.units
            )
            if l in merged
            else filter_layer
            for l, filter_layer in enumerate(network.layers)
        ),
        tuple(merge_map(v) for v in network.maps),
        {op: merge_pieces(old_pieces) for op, old_pieces in network.op_pieces.items()},
    )
