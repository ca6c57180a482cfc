"""The compressed model of a coarse partition: how many units of each layer lie in each part.

Units of a layer are interchangeable, so x[l, p] says all. A part receives of every map, in elements,

    all units that it lacks          if a layer that reads all of them has units there
    max(0, x[t, p] - x[l, p])        if a layer t that reads the same units has more of them there

which is separable over parts, and equals the connectivity (km1) of the explicit hypergraph where units that
are read alike lie together as far as they can (layouts.py).
"""

# l, t: layers; v: map; p: part

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.network import LayerNetwork

Array = np.ndarray


class CountModel(NamedTuple):
    """A network as arrays; `*_at` are where the entries of a map begin."""

    units: Array  # by layer
    work: Array  # of one unit, by layer (float)
    cost: Array  # elements of one unit, by map
    piece_start: Array
    piece_layer: Array
    dense_start: Array
    dense_layer: Array
    elementwise_start: Array
    elementwise_piece: Array  # which piece of the map
    elementwise_layer: Array  # is read by the same units of which layer

    @property
    def num_layers(self) -> int:
        return len(self.units)

    @property
    def total_work(self) -> float:
        """All work."""
        return float((self.units * self.work).sum())


def build_count_model(network: LayerNetwork, work: Any = None) -> CountModel:
    """The arrays of a network; `work` is given by layer, or else the operations of its forward."""
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
    """Pairs of a piece of a map and the layer that reads its units; pieces must be the same ones."""
    return [
        (i, reader_piece.layer)
        for reader in readers
        for i, (piece, reader_piece) in enumerate(zip(pieces, reader, strict=True))
        if piece.layer != reader_piece.layer
    ]


def _list_starts(lists: list[Any]) -> Array:
    return np.concatenate([[0], np.cumsum([len(entries) for entries in lists])]).astype(np.int64)


def _flatten(lists: list[list[int]]) -> Array:
    return np.array([entry for entries in lists for entry in entries], np.int64)


def volume(m: CountModel, x: Array) -> int:
    """Elements that cross parts in a forward."""
    return sum(elements_received(m, x[:, p]) for p in range(x.shape[1]))


def elements_received(m: CountModel, column: Array) -> int:
    """Elements that one part receives."""
    return int(_elements_received(m, np.ascontiguousarray(column, np.int64)))


@njit(cache=True)
def _elements_received(m: CountModel, column: Array) -> int:
    total = 0
    for v in range(len(m.cost)):
        total += m.cost[v] * units_received(m, column, v)
    return total


@njit(cache=True)
def units_received(m: CountModel, column: Array, v: int) -> int:
    """Units of one map that one part receives."""
    begin, end = m.piece_start[v], m.piece_start[v + 1]
    for d in range(m.dense_start[v], m.dense_start[v + 1]):
        if column[m.dense_layer[d]] > 0:
            lacking = 0
            for i in range(begin, end):
                lacking += m.units[m.piece_layer[i]] - column[m.piece_layer[i]]
            return lacking
    lacking = 0
    for i in range(begin, end):
        most = 0
        for a in range(m.elementwise_start[v], m.elementwise_start[v + 1]):
            if m.elementwise_piece[a] == i - begin:
                more = column[m.elementwise_layer[a]] - column[m.piece_layer[i]]
                most = max(most, more)
        lacking += most
    return lacking


def part_work(m: CountModel, x: Array) -> Array:
    """Work of every part."""
    work: Array = m.work @ x
    return work


def imbalance(m: CountModel, x: Array) -> float:
    """The largest part's work over the average."""
    work = part_work(m, x)
    return float(work.max() / work.mean())
