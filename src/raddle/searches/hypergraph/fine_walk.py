"""Defines the state of an annealing run over fine partitions, and counts its volume.

A *fine* partition may put the input channels of one filter into different parts; a *part* is a device's
share. The state has only counts. In each layer the parts form *rows*: the parts of a row compute the same
filters (units), each over its own `width` of consecutive channels, its *window*. A part *owns* the filters
whose partial results it sums (fine_rows.py). A *map* is a feature map. It consists of *pieces*: the units
of one layer, then those of the next. A *dense* reader of a map is a layer, which sums over its channels. An
*elementwise* reader is an operator such as an add: a part that owns unit i of it needs unit i of the map
(network.py). The *volume* is the elements that cross parts in a forward. It is counted as if the units that
a part owns were always in its window; fine_rows.assign_indices achieves that for almost all. Of every map a
part receives these units:

    all units that it does not own        if a layer reads all channels in this part
    max(0, width - owned)                 if a layer reads a window in this part
    max(0, owned by layer t - owned)      if an elementwise reader t has units in this part

In addition it sends a partial result for every filter of its row that it does not own.
"""

# l, t: layers; v: map; p: part; pb: the problem; w: the walk, the state of an annealing run;
# i, d, a: entries of the lists of pieces, dense readers and elementwise readers

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.counts import CountModel
from raddle.searches.hypergraph.explicit import channel_count
from raddle.searches.hypergraph.fine_partition import single_input_map
from raddle.searches.hypergraph.fine_rows import FineRows
from raddle.searches.hypergraph.network import LayerNetwork

Array = np.ndarray


class FineProblem(NamedTuple):
    """The network as arrays by layer."""

    m: CountModel  # the network as arrays (counts.py)
    channels: Array  # number of input channels
    splittable: Array  # whether a filter's channels may be in several parts
    unit_elements: Array  # elements of one filter's partial result
    cell_work: Array  # work of one channel of one filter
    map_start: Array  # the maps of layer l are maps[map_start[l] : map_start[l + 1]]
    maps: Array  # that the layer makes or reads


class FineWalk(NamedTuple):
    """The state of one annealing run, which is changed in place."""

    rows: FineRows  # the current partition
    best: FineRows  # the partition of the least overload, then of the least volume
    work: Array  # by part
    received: Array  # [part, map] units received
    totals: Array  # [VOLUME] of rows; [OVERLOAD] and [BEST_VOLUME] of best
    old_rows: Array  # [3, part] owned, row and width of a layer before a move
    scratch: Array  # [4, part] (float): HEIGHT, ROW, AREA, WORK (below)
    rng_state: Array  # of random_below


VOLUME, OVERLOAD, BEST_VOLUME = 0, 1, 2
# HEIGHT: filters in the part's row; ROW: the same by number of the row; AREA: filters of the row x
# channels of the part, before a move; WORK: work of the part after the move
HEIGHT, ROW, AREA, WORK = 0, 1, 2, 3


def build_fine_problem(network: LayerNetwork, m: CountModel) -> FineProblem:
    """Returns the arrays of a network."""
    layers = range(len(network.layers))
    channel_counts = np.array([channel_count(network, l) for l in layers], np.int64)
    maps_by_layer = [
        [
            v
            for v, feature_map in enumerate(network.maps)
            if l in feature_map.dense_readers
            or any(
                l == p.layer
                for pieces in (feature_map.pieces, *feature_map.elementwise_readers)
                for p in pieces
            )
        ]
        for l in layers
    ]
    return FineProblem(
        m,
        channel_counts,
        np.array([single_input_map(network, l) is not None for l in layers]),
        np.array([layer.unit_elements for layer in network.layers], np.int64),
        m.work / channel_counts,
        np.cumsum([0, *map(len, maps_by_layer)]).astype(np.int64),
        np.array([v for map_list in maps_by_layer for v in map_list], np.int64),
    )


def start_walk(pb: FineProblem, rows: FineRows, capacity: Array, seed: int) -> FineWalk:
    """Returns a walk that starts at the given rows; capacity: most work, by part."""
    parts = rows.owned.shape[1]
    walk = FineWalk(
        rows.copy(),
        rows.copy(),
        np.zeros(parts),
        np.zeros((parts, len(pb.m.cost)), np.int64),
        np.zeros(3),
        np.zeros((3, parts), np.int64),
        np.zeros((4, parts)),
        np.array([seed * 2 + 1], np.uint64),
    )
    count_volume(pb, walk)
    walk.totals[BEST_VOLUME] = walk.totals[VOLUME]
    walk.totals[OVERLOAD] = overload(walk.work, capacity)
    return walk


# -- counting ------------------------------------------------------------------------------------


@njit(cache=True)
def count_volume(pb: FineProblem, w: FineWalk) -> None:
    """Counts volume, work and units received from scratch."""
    w.work[:] = 0
    w.totals[VOLUME] = 0
    for l in range(len(pb.unit_elements)):
        w.totals[VOLUME] += partial_sum_elements(pb, w, l)
        w.work[:] += pb.cell_work[l] * w.scratch[HEIGHT] * w.rows.width[l]
    for p in range(len(w.work)):
        for v in range(len(pb.m.cost)):
            w.received[p, v] = units_received(pb, w.rows.owned, w.rows.width, v, p)
            w.totals[VOLUME] += pb.m.cost[v] * w.received[p, v]


@njit(cache=True)
def units_received(pb: FineProblem, owned: Array, width: Array, v: int, p: int) -> int:
    """Returns how many units of map v part p receives.

    owned, width: [layer, part], as in FineRows. The pieces of map v are the entries piece_start[v] to
    piece_start[v + 1] - 1 of m.piece_layer; likewise its dense and elementwise readers (counts.py).
    """
    m = pb.m
    begin, end = m.piece_start[v], m.piece_start[v + 1]
    window = 0
    for d in range(m.dense_start[v], m.dense_start[v + 1]):
        t = m.dense_layer[d]
        if width[t, p] == pb.channels[t]:
            missing = 0
            for i in range(begin, end):
                missing += m.units[m.piece_layer[i]] - owned[m.piece_layer[i], p]
            return missing
        window = max(window, width[t, p])
    if end - begin > 1:  # several pieces: assume that the part owns nothing in its window
        missing, window = window, 0
    else:
        missing = 0
    for i in range(begin, end):
        owned_units = owned[m.piece_layer[i], p]
        max_missing = window - owned_units
        for a in range(m.elementwise_start[v], m.elementwise_start[v + 1]):
            if m.elementwise_piece[a] == i - begin:
                max_missing = max(max_missing, owned[m.elementwise_layer[a], p] - owned_units)
        missing += max(0, max_missing)
    return missing


@njit(cache=True)
def partial_sum_elements(pb: FineProblem, w: FineWalk, l: int) -> float:
    """Returns the elements of partial results that layer l sends; also writes scratch[HEIGHT]."""
    owned, row = w.rows.owned[l], w.rows.row[l]
    row_height, height = w.scratch[ROW], w.scratch[HEIGHT]
    row_height[:] = 0
    for p in range(len(owned)):
        if row[p] >= 0:
            row_height[row[p]] += owned[p]
    total = 0.0
    for p in range(len(owned)):
        height[p] = row_height[row[p]] if row[p] >= 0 else 0
        total += height[p] - owned[p]
    return float(pb.unit_elements[l] * total)


@njit(cache=True)
def overload(work: Array, capacity: Array) -> float:
    """Returns the work above the capacities, each as a fraction of the capacity, added up."""
    total = 0.0
    for p in range(len(work)):
        if work[p] > capacity[p] * (1 + 1e-12):
            total += work[p] / capacity[p] - 1
    return total
