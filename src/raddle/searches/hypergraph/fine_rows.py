"""The compressed form of a fine partition: a layer is cut into rows of filters, each row into channels.

    filters  +-------+-----+        a row's filters are those that its parts own,
       row 0 |   0   |  1  |        a part reads `width` channels next to each other,
             +---+---+-----+        coarse: every row has one part, which reads all of them.
       row 1 | 2 | 3 |  4  |
             +---+---+-----+
               channels

Filters are interchangeable, so only counts matter as long as a part's own filters can be put into the
window that it reads of them in the next layer. `laid_out` does so as far as windows allow, and gives index
sets. A window is one range: what a part adds up itself is one partial result.
"""

# l, t: layers; p: part; i: row

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.explicit import channel_count
from raddle.searches.hypergraph.fine_partition import (
    Block,
    FineLayer,
    FinePartition,
    ranges,
    reads_one,
)
from raddle.searches.hypergraph.layouts import elementwise_partners, layout_of_owners
from raddle.searches.hypergraph.network import FeatureMap, LayerNetwork

Array = np.ndarray
TRIES = 2000  # orders of windows


class Rows(NamedTuple):
    """Counts [layer, part]; a part without pairs of a layer has row -1 there."""

    own: Array  # filters that it sums
    row: Array
    width: Array  # channels that it reads

    def copy(self) -> Rows:
        return Rows(*(part.copy() for part in self))


def coarse_rows(network: LayerNetwork, x: Array) -> Rows:
    """Whole filters: every part is a row."""
    every = np.array([channel_count(network, l) for l in range(len(network.layers))])
    parts = np.arange(x.shape[1])
    x = np.ascontiguousarray(x, np.int64)
    row = np.where(x > 0, parts, -1)
    return Rows(x.copy(), row, np.where(x > 0, every[:, None], 0))


Windows = tuple[Array, Array]  # by part, where what it reads begins and ends


def laid_out(network: LayerNetwork, rows: Rows, seed: int = 0) -> FinePartition:
    """Index sets: windows first, owners into windows, and then the filters of rows."""
    rng = np.random.default_rng(seed)
    able = {l: v for l in range(len(network.layers)) if (v := reads_one(network, l)) is not None}
    windows = {l: _windows(rows, l, np.arange(rows.own.shape[1])) for l in able}
    owners: dict[int, Array] = {}
    for l, layer in enumerate(network.layers):
        t, at = _reader(able, rows, l)
        near = next((owners[u] for u in elementwise_partners(network, l) if u in owners), None)
        start = np.full(layer.units, -1) if near is None else _kept(near, rows.own[l])
        if t in able and len(able[t].pieces) == 1:
            if near is None:
                windows[t] = _ordered(rows, l, t, windows[t], rng)
            else:
                windows[t] = _windows(rows, t, _by_place(start, rows.own.shape[1]))
        owners[l] = _filled(start, rows.own[l], windows.get(t), at)
    return FinePartition(
        rows.own.shape[1],
        tuple(
            FineLayer(_blocks(rows, l, owners[l], windows.get(l)), layout_of_owners(owners[l]))
            for l in range(len(network.layers))
        ),
    )


def _blocks(rows: Rows, l: int, owner: Array, windows: Windows | None) -> tuple[Block, ...]:
    row_of = rows.row[l][owner]
    found = []
    for p in np.flatnonzero(rows.row[l] >= 0):
        start = 0 if windows is None else int(windows[0][p])
        filters = ranges(row_of == rows.row[l, p])
        found.append(Block(int(p), filters, ((start, start + int(rows.width[l, p])),)))
    return tuple(found)


def _windows(rows: Rows, l: int, order: Array) -> Windows:
    """The channels of parts next to each other in each row, in the order of parts."""
    ends = np.zeros(rows.own.shape[1], np.int64)
    for i in np.unique(rows.row[l][rows.row[l] >= 0]):
        members = order[rows.row[l][order] == i]
        ends[members] = np.cumsum(rows.width[l][members])
    return ends - rows.width[l], ends


def _reader(able: Mapping[int, FeatureMap], rows: Rows, l: int) -> tuple[int, int]:
    """The layer that reads most of a layer's units in windows, and where the units begin there."""
    best, found = 0, (-1, 0)
    for t, own in able.items():
        at = 0
        for piece in own.pieces:
            if piece.layer == l and (rows.width[t] < own.units).any():
                gain = own.unit_elements * int(np.minimum(rows.own[l], rows.width[t]).sum())
                if gain > best:
                    best, found = gain, (t, at)
            at += piece.units
    return found


def _ordered(rows: Rows, l: int, t: int, windows: Windows, rng: np.random.Generator) -> Windows:
    """Windows in an order in which owned units fit into them: parts of a row change places at random."""
    most = int(np.minimum(rows.own[l], rows.width[t]).sum())
    order = np.arange(rows.own.shape[1])
    fits = _fitting(rows.own[l], *windows)
    members = np.flatnonzero(rows.row[t] >= 0)
    for _ in range(TRIES):
        if fits == most:
            break
        p = rng.choice(members)
        q = rng.choice(members[rows.row[t][members] == rows.row[t, p]])
        tried = order.copy()
        tried[order == p], tried[order == q] = q, p
        moved = _windows(rows, t, tried)
        if (more := _fitting(rows.own[l], *moved)) >= fits:
            order, windows, fits = tried, moved, more
    return windows


def _by_place(owner: Array, parts: int) -> Array:
    """Parts in the order of the units that they own."""
    places = [np.flatnonzero(owner == p) for p in range(parts)]
    return np.argsort([at.mean() if len(at) else len(owner) for at in places], kind="stable")


def _fitting(own: Array, begin: Array, end: Array) -> int:
    """How many owned units lie in windows at best."""
    placed = np.full(int(own.sum()), -1)
    into_windows(placed, own.copy(), begin, end)
    return int((placed >= 0).sum())


def _kept(near: Array, counts: Array) -> Array:
    """The owners of another layer's units as far as counts allow; -1 elsewhere."""
    own = np.full(len(near), -1)
    for p in range(len(counts)):
        own[np.flatnonzero(near == p)[: counts[p]]] = p
    return own


def _filled(owner: Array, counts: Array, windows: Windows | None, at: int) -> Array:
    """Gives units without an owner to parts that lack some, into their windows where they fit."""
    owner, left = owner.copy(), counts.copy()
    np.subtract.at(left, owner[owner >= 0], 1)
    if windows is not None:
        begin, end = (np.clip(side - at, 0, len(owner)) for side in windows)
        into_windows(owner, left, begin, end)
    owner[owner < 0] = np.repeat(np.arange(len(counts)), left)
    return owner


@njit(cache=True)
def into_windows(owner: Array, left: Array, begin: Array, end: Array) -> None:
    """Earliest end first: as many units as possible lie in the window of their part."""
    for unit in range(len(owner)):
        if owner[unit] >= 0:
            continue
        chosen = -1
        for p in range(len(left)):
            inside = left[p] > 0 and begin[p] <= unit < end[p]
            if inside and (chosen < 0 or end[p] < end[chosen]):
                chosen = p
        if chosen >= 0:
            owner[unit] = chosen
            left[chosen] -= 1


@njit(cache=True)
def apportioned(total: int, shares: Array, least: int) -> Array:
    """Integers in proportion to shares, none below `least`, that sum to the total."""
    exact = least + (total - least * len(shares)) * shares / shares.sum()
    found: Array = np.floor(exact).astype(np.int64)
    rest = total - found.sum()
    if rest > 0:
        found[np.argsort(found - exact)[:rest]] += 1
    return found
