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
from raddle.searches.hypergraph.fine_partition import reads_one
from raddle.searches.hypergraph.fine_rows import Rows
from raddle.searches.hypergraph.network import LayerNetwork

Array = np.ndarray


class Problem(NamedTuple):
    """What the moves have to know, as arrays."""

    m: CountModel
    channels: Array  # units that a layer reads
    able: Array  # layers whose filters may be cut
    made: Array  # elements of a partial result
    each: Array  # work of a pair, by layer
    touch_at: Array  # where a layer's maps begin
    touch: Array  # maps whose crossing depends on it


class Walk(NamedTuple):
    """Changed in place."""

    rows: Rows
    best: Rows
    work: Array  # by part
    got: Array  # [part, map] units received
    figures: Array  # volume; least overload, and the least volume with it
    old: Array  # [3, part] a layer's rows before a move
    scratch: Array  # [4, part] (float)
    random: Array


VOLUME, OVER, LEAST = 0, 1, 2
HEIGHT, ROW, AREA, WORK = 0, 1, 2, 3  # of parts' rows, by row, of parts before a move and after


def problem(network: LayerNetwork, m: CountModel) -> Problem:
    """A network with the work of a model."""
    layers = range(len(network.layers))
    every = np.array([channel_count(network, l) for l in layers], np.int64)
    touched = [
        [
            v
            for v, own in enumerate(network.maps)
            if l in own.dense_readers
            or any(l == p.layer for form in (own.pieces, *own.elementwise_readers) for p in form)
        ]
        for l in layers
    ]
    return Problem(
        m,
        every,
        np.array([reads_one(network, l) is not None for l in layers]),
        np.array([layer.unit_elements for layer in network.layers], np.int64),
        m.work / every,
        np.cumsum([0, *map(len, touched)]).astype(np.int64),
        np.array([v for own in touched for v in own], np.int64),
    )


def walk(pb: Problem, rows: Rows, capacity: Array, seed: int) -> Walk:
    """A walk that starts at rows."""
    parts = rows.own.shape[1]
    fresh = Walk(
        rows.copy(),
        rows.copy(),
        np.zeros(parts),
        np.zeros((parts, len(pb.m.cost)), np.int64),
        np.zeros(3),
        np.zeros((3, parts), np.int64),
        np.zeros((4, parts)),
        np.array([seed * 2 + 1], np.uint64),
    )
    count(pb, fresh)
    fresh.figures[LEAST] = fresh.figures[VOLUME]
    fresh.figures[OVER] = overload(fresh.work, capacity)
    return fresh


# -- counting ------------------------------------------------------------------------------------


@njit(cache=True)
def count(pb: Problem, w: Walk) -> None:
    """The volume from nothing."""
    w.work[:] = 0
    w.figures[VOLUME] = 0
    for l in range(len(pb.made)):
        w.figures[VOLUME] += partial(pb, w, l)
        w.work[:] += pb.each[l] * w.scratch[HEIGHT] * w.rows.width[l]
    for p in range(len(w.work)):
        for v in range(len(pb.m.cost)):
            w.got[p, v] = received(pb, w.rows.own, w.rows.width, v, p)
            w.figures[VOLUME] += pb.m.cost[v] * w.got[p, v]


@njit(cache=True)
def received(pb: Problem, own: Array, width: Array, v: int, p: int) -> int:
    m = pb.m
    begin, end = m.piece_start[v], m.piece_start[v + 1]
    window = 0
    for d in range(m.dense_start[v], m.dense_start[v + 1]):
        t = m.dense_layer[d]
        if width[t, p] == pb.channels[t]:
            lacking = 0
            for i in range(begin, end):
                lacking += m.units[m.piece_layer[i]] - own[m.piece_layer[i], p]
            return lacking
        window = max(window, width[t, p])
    if end - begin > 1:  # a window lies in one of several layers: count on nothing
        lacking, window = window, 0
    else:
        lacking = 0
    for i in range(begin, end):
        held = own[m.piece_layer[i], p]
        most = window - held
        for a in range(m.elementwise_start[v], m.elementwise_start[v + 1]):
            if m.elementwise_piece[a] == i - begin:
                most = max(most, own[m.elementwise_layer[a], p] - held)
        lacking += max(0, most)
    return lacking


@njit(cache=True)
def partial(pb: Problem, w: Walk, l: int) -> float:
    """Elements of partial results that cross; leaves the heights of parts' rows in scratch."""
    own, row = w.rows.own[l], w.rows.row[l]
    by_row, height = w.scratch[ROW], w.scratch[HEIGHT]
    by_row[:] = 0
    for p in range(len(own)):
        if row[p] >= 0:
            by_row[row[p]] += own[p]
    total = 0.0
    for p in range(len(own)):
        height[p] = by_row[row[p]] if row[p] >= 0 else 0
        total += height[p] - own[p]
    return float(pb.made[l] * total)


@njit(cache=True)
def overload(work: Array, capacity: Array) -> float:
    """How many parts' capacity all work above it is."""
    total = 0.0
    for p in range(len(work)):
        if work[p] > capacity[p] * (1 + 1e-12):
            total += work[p] / capacity[p] - 1
    return total
