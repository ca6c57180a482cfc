"""A walk over rows of layers: what its moves have to know, and its volume.

The volume is counted part by part as if owned units always fitted into windows, which `laid_out` achieves
but for few: a part receives of a map

    all units that it lacks              where a layer reads all of them there
    max(0, width - own)                  where it reads a window
    max(0, own of t - own)               where a layer t reads the same units

and computes height - own filters of a layer for others.
"""

# l, t: layers; v: map; p, q: parts; i, j: rows

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
    """What the moves have to know, as arrays."""

    m: CountModel
    channels: Array  # units that a layer reads
    splittable: Array  # layers whose filters may be cut
    unit_elements: Array  # elements of a partial result
    cell_work: Array  # work of a pair, by layer
    map_start: Array  # where a layer's maps begin
    maps: Array  # maps whose crossing depends on it


class FineWalk(NamedTuple):
    """Changed in place."""

    rows: FineRows
    best: FineRows
    work: Array  # by part
    received: Array  # [part, map] units received
    totals: Array  # volume; least overload, and the least volume with it
    old_rows: Array  # [3, part] a layer's rows before a move
    scratch: Array  # [4, part] (float)
    rng_state: Array


VOLUME, OVERLOAD, BEST_VOLUME = 0, 1, 2
HEIGHT, ROW, AREA, WORK = 0, 1, 2, 3  # of parts' rows, by row, of parts before a move and after


def build_fine_problem(network: LayerNetwork, m: CountModel) -> FineProblem:
    """A network with the work of a model."""
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
    """A walk that starts at rows."""
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
    """The volume from nothing."""
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
    if end - begin > 1:  # a window lies in one of several layers: count on nothing
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
    """Elements of partial results that cross; leaves the heights of parts' rows in scratch."""
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
    """How many parts' capacity all work above it is."""
    total = 0.0
    for p in range(len(work)):
        if work[p] > capacity[p] * (1 + 1e-12):
            total += work[p] / capacity[p] - 1
    return total
