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

from raddle.searches.hypergraph.network import Network

Array = np.ndarray


class Model(NamedTuple):
    """A network as arrays; `*_at` are where the entries of a map begin."""

    units: Array  # by layer
    work: Array  # of one unit, by layer (float)
    cost: Array  # elements of one unit, by map
    piece_at: Array
    piece_layer: Array
    dense_at: Array
    dense_layer: Array
    alike_at: Array
    alike_piece: Array  # which piece of the map
    alike_layer: Array  # is read by the same units of which layer

    @property
    def layers(self) -> int:
        return len(self.units)

    @property
    def total(self) -> float:
        """All work."""
        return float((self.units * self.work).sum())


def model(network: Network, work: Any = None) -> Model:
    """The arrays of a network; `work` is given by layer, or else the operations of its forward."""
    units = np.array([layer.units for layer in network.layers], np.int64)
    given = [layer.flops for layer in network.layers] if work is None else work
    pieces = [[piece.layer for piece in v.form] for v in network.maps]
    dense = [list(v.dense) for v in network.maps]
    alike = [_alike(v.form, v.alike) for v in network.maps]
    flat = [pair for own in alike for pair in own]
    return Model(
        units,
        np.asarray(given, np.float64) / units,
        np.array([v.elements for v in network.maps], np.int64),
        _starts(pieces),
        _flat(pieces),
        _starts(dense),
        _flat(dense),
        _starts(alike),
        np.array([i for i, _ in flat], np.int64),
        np.array([t for _, t in flat], np.int64),
    )


def _alike(form: Any, others: Any) -> list[tuple[int, int]]:
    """Pairs of a piece of a map and the layer that reads its units; pieces must be the same ones."""
    return [
        (i, theirs.layer)
        for other in others
        for i, (own, theirs) in enumerate(zip(form, other, strict=True))
        if own.layer != theirs.layer
    ]


def _starts(lists: list[Any]) -> Array:
    return np.concatenate([[0], np.cumsum([len(own) for own in lists])]).astype(np.int64)


def _flat(lists: list[list[int]]) -> Array:
    return np.array([entry for own in lists for entry in own], np.int64)


def volume(m: Model, x: Array) -> int:
    """Elements that cross parts in a forward."""
    return sum(received(m, x[:, p]) for p in range(x.shape[1]))


def received(m: Model, column: Array) -> int:
    """Elements that one part receives."""
    return int(_received(m, np.ascontiguousarray(column, np.int64)))


@njit(cache=True)
def _received(m: Model, column: Array) -> int:
    total = 0
    for v in range(len(m.cost)):
        total += m.cost[v] * units_received(m, column, v)
    return total


@njit(cache=True)
def units_received(m: Model, column: Array, v: int) -> int:
    """Units of one map that one part receives."""
    begin, end = m.piece_at[v], m.piece_at[v + 1]
    for d in range(m.dense_at[v], m.dense_at[v + 1]):
        if column[m.dense_layer[d]] > 0:
            lacking = 0
            for i in range(begin, end):
                lacking += m.units[m.piece_layer[i]] - column[m.piece_layer[i]]
            return lacking
    lacking = 0
    for i in range(begin, end):
        most = 0
        for a in range(m.alike_at[v], m.alike_at[v + 1]):
            if m.alike_piece[a] == i - begin:
                more = column[m.alike_layer[a]] - column[m.piece_layer[i]]
                most = max(most, more)
        lacking += most
    return lacking


def part_work(m: Model, x: Array) -> Array:
    """Work of every part."""
    found: Array = m.work @ x
    return found


def imbalance(m: Model, x: Array) -> float:
    """The largest part's work over the average."""
    own = part_work(m, x)
    return float(own.max() / own.mean())
