"""Models a coarse partition by counts only: the number of units of each layer in each part.

In a *coarse* partition every filter is whole in one part; a *part* is a device's share, a *unit* a filter.
A *map* is a feature map: a value that layers read. A part that has units of a *dense* reader (a layer)
needs all units of the map; a part that has unit i of an *elementwise* reader (an add) needs only unit i of
the map. A *piece* is the units of one layer in a map (network.py).
The units of a layer are interchangeable, so a partition is a matrix of counts x[l, p]. For every map, part
p receives these units:

    all units that it does not have     if a dense reader of the map has units in p
    max(0, x[t, p] - x[l, p])           for a piece of layer l that an elementwise reader t reads

The *column* x[:, p] alone decides what part p receives. The total is the *volume*. It equals the
connectivity (km1) of the hypergraph of explicit.py if units that are read elementwise are placed together
as far as possible; filter_layouts.py does that. A net joins a filter with all filters that read its output.
km1 is the sum over nets of (parts in the net - 1) x cost.
"""

# l, t: layers; v: map; p: part; x: counts [layer, part]; m: the network as arrays; i, d, a: entries of the
# lists of pieces, dense readers and elementwise readers

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.network import LayerNetwork

Array = np.ndarray


class CountModel(NamedTuple):
    """A LayerNetwork as arrays, for numba.

    Entries of all maps stand one after the other: the pieces of map v are piece_start[v] to
    piece_start[v + 1] of piece_layer; likewise its dense and its elementwise readers.
    """

    units: Array  # by layer
    work: Array  # of one unit, by layer (float)
    cost: Array  # elements of one unit, by map
    piece_start: Array
    piece_layer: Array  # the layer of each piece
    dense_start: Array
    dense_layer: Array  # the layer of each dense reader
    elementwise_start: Array
    elementwise_piece: Array  # by elementwise reader: number, in the map, of the piece it reads
    elementwise_layer: Array  # by elementwise reader: the layer that has its units

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.units)

    @property
    def total_work(self) -> float:
        """The work of all units."""
        return float((self.units * self.work).sum())


def build_count_model(network: LayerNetwork, work: Any = None) -> CountModel:
    """Returns the arrays of a network; work: of each layer, by default the FLOPs of its forward."""
    units = np.array([layer.units for layer in network.layers], np.int64)
    layer_work = [layer.flops for layer in network.layers] if work is None else work
    pieces = [[piece.layer for piece in v.pieces] for v in network.maps]
    dense = [list(v.dense_readers) for v in network.maps]
    elementwise = [_elementwise_pairs(v.pieces, v.elementwise_readers) for v in network.maps]
    flat_pairs = [pair for pairs in elementwise for pair in pairs]
    return CountModel(
        units,
        np.asarray(layer_work, np.float64) / units,
        np.array([v.unit_elements for v in network.maps], np.int64),
        _list_starts(pieces),
        _flatten(pieces),
        _list_starts(dense),
        _flatten(dense),
        _list_starts(elementwise),
        np.array([i for i, _ in flat_pairs], np.int64),
        np.array([t for _, t in flat_pairs], np.int64),
    )


def _elementwise_pairs(pieces: Any, readers: Any) -> list[tuple[int, int]]:
    """Returns pairs (number of a piece of the map, layer that reads its units).

    Map and reader have as many pieces, of equal sizes.
    """
    return [
        (i, reader_piece.layer)
        for reader in readers
        for i, (piece, reader_piece) in enumerate(zip(pieces, reader, strict=True))
        if piece.layer != reader_piece.layer
    ]


def _list_starts(lists: list[Any]) -> Array:
    """Returns where each list begins when all stand one after the other, and where the last ends."""
    return np.concatenate([[0], np.cumsum([len(entries) for entries in lists])]).astype(np.int64)


def _flatten(lists: list[list[int]]) -> Array:
    """Returns the entries of all lists, one after the other."""
    return np.array([entry for entries in lists for entry in entries], np.int64)


def volume(m: CountModel, x: Array) -> int:
    """Returns how many elements cross parts in a forward."""
    return sum(elements_received(m, x[:, p]) for p in range(x.shape[1]))


def elements_received(m: CountModel, column: Array) -> int:
    """Returns how many elements a part with this column of counts receives."""
    return int(_elements_received(m, np.ascontiguousarray(column, np.int64)))


@njit(cache=True)
def _elements_received(m: CountModel, column: Array) -> int:
    total = 0
    for v in range(len(m.cost)):
        total += m.cost[v] * units_received(m, column, v)
    return total


@njit(cache=True)
def units_received(m: CountModel, column: Array, v: int) -> int:
    """Returns how many units of map v a part with this column of counts receives."""
    begin, end = m.piece_start[v], m.piece_start[v + 1]
    for d in range(m.dense_start[v], m.dense_start[v + 1]):
        if column[m.dense_layer[d]] > 0:
            missing = 0
            for i in range(begin, end):
                missing += m.units[m.piece_layer[i]] - column[m.piece_layer[i]]
            return missing
    missing = 0
    for i in range(begin, end):
        max_missing = 0
        for a in range(m.elementwise_start[v], m.elementwise_start[v + 1]):
            if m.elementwise_piece[a] == i - begin:
                difference = column[m.elementwise_layer[a]] - column[m.piece_layer[i]]
                max_missing = max(max_missing, difference)
        missing += max_missing
    return missing


def part_work(m: CountModel, x: Array) -> Array:
    """Returns the work of every part."""
    work: Array = m.work @ x
    return work


def imbalance(m: CountModel, x: Array) -> float:
    """Returns the work of the largest part divided by the average."""
    work = part_work(m, x)
    return float(work.max() / work.mean())
