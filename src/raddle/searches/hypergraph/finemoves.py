"""Annealing on rows: moves that rewrite one layer, and what they do to the volume.

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

from raddle.searches.hypergraph.counts import Model
from raddle.searches.hypergraph.drawing import below
from raddle.searches.hypergraph.explicit import channels
from raddle.searches.hypergraph.finemodel import reads_one
from raddle.searches.hypergraph.finerows import Rows, apportioned
from raddle.searches.hypergraph.network import Network

Array = np.ndarray


class Problem(NamedTuple):
    """What the moves have to know, as arrays."""

    m: Model
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


def problem(network: Network, m: Model) -> Problem:
    """A network with the work of a model."""
    layers = range(len(network.layers))
    every = np.array([channels(network, l) for l in layers], np.int64)
    touched = [
        [
            v
            for v, own in enumerate(network.maps)
            if l in own.dense or any(l == p.layer for form in (own.form, *own.alike) for p in form)
        ]
        for l in layers
    ]
    return Problem(
        m,
        every,
        np.array([reads_one(network, l) is not None for l in layers]),
        np.array([layer.made for layer in network.layers], np.int64),
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
    fresh.figures[OVER] = _overload(fresh.work, capacity)
    return fresh


# -- counting ------------------------------------------------------------------------------------


@njit(cache=True)
def count(pb: Problem, w: Walk) -> None:
    """The volume from nothing."""
    w.work[:] = 0
    w.figures[VOLUME] = 0
    for l in range(len(pb.made)):
        w.figures[VOLUME] += _partial(pb, w, l)
        w.work[:] += pb.each[l] * w.scratch[HEIGHT] * w.rows.width[l]
    for p in range(len(w.work)):
        for v in range(len(pb.m.cost)):
            w.got[p, v] = _received(pb, w.rows.own, w.rows.width, v, p)
            w.figures[VOLUME] += pb.m.cost[v] * w.got[p, v]


@njit(cache=True)
def _received(pb: Problem, own: Array, width: Array, v: int, p: int) -> int:
    m = pb.m
    begin, end = m.piece_at[v], m.piece_at[v + 1]
    window = 0
    for d in range(m.dense_at[v], m.dense_at[v + 1]):
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
        for a in range(m.alike_at[v], m.alike_at[v + 1]):
            if m.alike_piece[a] == i - begin:
                most = max(most, own[m.alike_layer[a], p] - held)
        lacking += max(0, most)
    return lacking


@njit(cache=True)
def _partial(pb: Problem, w: Walk, l: int) -> float:
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


# -- walking -------------------------------------------------------------------------------------


@njit(cache=True)
def anneal(
    pb: Problem, w: Walk, capacity: Array, moves: int, hot: float, cold: float, price: float
) -> None:
    """Moves of one layer each, from one temperature (elements) to another.

    Work above the capacity (by part) costs `price` elements a part's capacity.
    """
    layers, parts = w.rows.own.shape
    over = _overload(w.work, capacity)
    for step in range(moves):
        heat = hot * (cold / hot) ** (step / moves)
        l = below(w.random, layers)
        own, row, width = w.rows.own[l], w.rows.row[l], w.rows.width[l]
        w.old[0], w.old[1], w.old[2] = own, row, width
        grown = -_partial(pb, w, l)
        w.scratch[AREA] = w.scratch[HEIGHT] * width
        if not _move(pb, w, l, capacity):
            own[:], row[:], width[:] = w.old[0], w.old[1], w.old[2]
            continue
        grown += _partial(pb, w, l)
        w.scratch[WORK] = w.work + pb.each[l] * (w.scratch[HEIGHT] * width - w.scratch[AREA])
        above = _overload(w.scratch[WORK], capacity)
        chance = (below(w.random, 1 << 30) + 1) / (1 << 30)
        allowed = -heat * np.log(chance) - price * (above - over)
        for p in range(parts):
            if own[p] != w.old[0, p] or width[p] != w.old[2, p]:
                for i in range(pb.touch_at[l], pb.touch_at[l + 1]):
                    v = pb.touch[i]
                    got = _received(pb, w.rows.own, w.rows.width, v, p)
                    grown += pb.m.cost[v] * (got - w.got[p, v])
        if grown > allowed:
            own[:], row[:], width[:] = w.old[0], w.old[1], w.old[2]
            continue
        for p in range(parts):
            if own[p] != w.old[0, p] or width[p] != w.old[2, p]:
                for i in range(pb.touch_at[l], pb.touch_at[l + 1]):
                    v = pb.touch[i]
                    w.got[p, v] = _received(pb, w.rows.own, w.rows.width, v, p)
        w.work[:] = w.scratch[WORK]
        over = above
        w.figures[VOLUME] += grown
        better = over == w.figures[OVER] and w.figures[VOLUME] < w.figures[LEAST]
        if over < w.figures[OVER] or better:
            w.figures[LEAST], w.figures[OVER] = w.figures[VOLUME], over
            w.best.own[:], w.best.row[:], w.best.width[:] = w.rows.own, w.rows.row, w.rows.width


@njit(cache=True)
def _overload(work: Array, capacity: Array) -> float:
    """How many parts' capacity all work above it is."""
    total = 0.0
    for p in range(len(work)):
        if work[p] > capacity[p] * (1 + 1e-12):
            total += work[p] / capacity[p] - 1
    return total


# -- moves ---------------------------------------------------------------------------------------


@njit(cache=True)
def _move(pb: Problem, w: Walk, l: int, capacity: Array) -> bool:
    """Rewrites the rows of a layer; False where the draw means nothing."""
    p = _member(w, l)
    q = below(w.random, w.rows.own.shape[1])
    if below(w.random, 2) == 0:
        q = _member(w, l)
    if p == q:
        return False
    row, able = w.rows.row[l], pb.able[l]
    way = below(w.random, 10)
    if way == 0:
        return _exchange(w, l, p, q)
    if row[q] < 0:
        if able and way < 5:
            return _join(pb, w, l, p, q)
        return _give_filters(pb, w, l, p, q, capacity)
    if row[p] == row[q]:
        if way < 4:
            return _give_width(w, l, p, q)
        if way < 7:
            return _give_own(w, l, p, q)
        return _regroup(pb, w, l, p, q)
    if able and way < 4:
        return _regroup(pb, w, l, p, q)
    return _give_filters(pb, w, l, p, q, capacity)


@njit(cache=True)
def _member(w: Walk, l: int) -> int:
    """A part that has pairs of a layer."""
    parts = w.rows.own.shape[1]
    p = below(w.random, parts)
    while w.rows.row[l, p] < 0:
        p = p + 1 if p + 1 < parts else 0
    return p


@njit(cache=True)
def _amount(w: Walk, most: int) -> int:
    """One, all, or any number of at most so many."""
    way = below(w.random, 4)
    if way == 0:
        return 1
    return most if way == 1 else 1 + below(w.random, most)


@njit(cache=True)
def _exchange(w: Walk, l: int, p: int, q: int) -> bool:
    """One part does what the other did."""
    for a in (w.rows.own[l], w.rows.row[l], w.rows.width[l]):
        a[p], a[q] = a[q], a[p]
    return True


@njit(cache=True)
def _leave(w: Walk, l: int, p: int) -> None:
    w.rows.own[l, p], w.rows.row[l, p], w.rows.width[l, p] = 0, -1, 0


@njit(cache=True)
def _free(w: Walk, l: int, p: int) -> int:
    """The number of a row that does not exist, p's if possible."""
    row = w.rows.row[l]
    i = p
    while True:
        taken = False
        for r in row:
            taken = taken or r == i
        if not taken:
            return i
        i = i + 1 if i + 1 < len(row) else 0


@njit(cache=True)
def _give_filters(pb: Problem, w: Walk, l: int, p: int, q: int, capacity: Array) -> bool:
    """Filters from a row to another, or to one of a part's own."""
    own, row, width = w.rows.own[l], w.rows.row[l], w.rows.width[l]
    if own[p] == 0:
        return False
    k = _amount(w, own[p])
    wide = width[q] if row[q] >= 0 else pb.channels[l]
    if below(w.random, 3) == 0:  # as many as fit
        each = max(1e-30, pb.each[l] * wide)  # an embedding has no work
        room = max(0.0, capacity[q] - w.work[q])
        k = min(own[p], max(1, np.int64(min(1e15, room / each))))
    if row[q] < 0:
        row[q], width[q] = _free(w, l, q), pb.channels[l]
    own[p] -= k
    own[q] += k
    left = 0
    for s in range(len(own)):
        if row[s] == row[p]:
            left += own[s]
    if left == 0:
        i = row[p]
        for s in range(len(own)):
            if row[s] == i:
                _leave(w, l, s)
    return True


@njit(cache=True)
def _give_width(w: Walk, l: int, p: int, q: int) -> bool:
    """Channels from a part to another in its row; who has none leaves."""
    own, width = w.rows.own[l], w.rows.width[l]
    k = _amount(w, width[p])
    width[p] -= k
    width[q] += k
    if width[p] == 0:
        own[q] += own[p]
        _leave(w, l, p)
    return True


@njit(cache=True)
def _give_own(w: Walk, l: int, p: int, q: int) -> bool:
    own = w.rows.own[l]
    if own[p] == 0:
        return False
    k = _amount(w, own[p])
    own[p] -= k
    own[q] += k
    return True


@njit(cache=True)
def _join(pb: Problem, w: Walk, l: int, p: int, q: int) -> bool:
    """A part that is new to the layer takes a share of another's channels and filters."""
    own, row, width = w.rows.own[l], w.rows.row[l], w.rows.width[l]
    if width[p] < 2:
        return False
    k = 1 + below(w.random, width[p] - 1)
    taken = own[p] * k // width[p]
    row[q], width[q], own[q] = row[p], k, taken
    width[p] -= k
    own[p] -= taken
    return True


@njit(cache=True)
def _regroup(pb: Problem, w: Walk, l: int, p: int, q: int) -> bool:
    """Other rows of the same areas: p goes to q's row or to one of its own, rows become one or two."""
    row = w.rows.row[l]
    way = below(w.random, 4)
    if row[p] != row[q]:
        if way < 2:
            row[p] = row[q]
        elif way == 2:
            i, j = row[p], row[q]
            for s in range(len(row)):
                if row[s] == i:
                    row[s] = j
        else:  # change places
            row[p], row[q] = row[q], row[p]
    elif way < 2:
        row[p] = _free(w, l, p)
    elif way == 2:
        i, j = row[p], _free(w, l, p)
        for s in range(len(row)):
            if row[s] == i and s != q and (s == p or below(w.random, 2) == 0):
                row[s] = j
    else:  # some of p's area, in the same rows
        share = w.scratch[AREA, p] * (1 + below(w.random, 8)) / 8
        w.scratch[AREA, p] -= share
        w.scratch[AREA, q] += share
        done = _rebuilt(pb, w, l)
        w.scratch[AREA, p] += share
        w.scratch[AREA, q] -= share
        return done
    return _rebuilt(pb, w, l)


@njit(cache=True)
def _rebuilt(pb: Problem, w: Walk, l: int) -> bool:
    """Heights, widths and owners for rows whose parts have the areas before the move."""
    own, row, width, area = w.rows.own[l], w.rows.row[l], w.rows.width[l], w.scratch[AREA]
    parts = len(own)
    by_row = np.zeros(parts)
    members = np.zeros(parts, np.int64)
    for p in range(parts):
        if row[p] >= 0 and area[p] <= 0:
            _leave(w, l, p)
        if row[p] >= 0:
            by_row[row[p]] += area[p]
            members[row[p]] += 1
    if members.max() > pb.channels[l] or (members > 0).sum() > pb.m.units[l]:
        return False
    chosen = np.flatnonzero(members > 0)
    height = apportioned(pb.m.units[l], by_row[chosen], 1)
    for n, i in enumerate(chosen):
        inside = np.flatnonzero(row == i)
        width[inside] = apportioned(pb.channels[l], area[inside], 1)
        own[inside] = apportioned(height[n], area[inside], 0)
    return True
