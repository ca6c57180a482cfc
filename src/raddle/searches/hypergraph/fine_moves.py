"""Moves that rewrite the rows of one layer."""

# l: layer; p, q: parts; i, j: rows

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.searches.hypergraph.fine_rows import apportioned
from raddle.searches.hypergraph.fine_walk import AREA, Array, Problem, Walk
from raddle.searches.hypergraph.random_numbers import random_below


@njit(cache=True)
def move(pb: Problem, w: Walk, l: int, capacity: Array) -> bool:
    """Rewrites the rows of a layer; False where the draw means nothing."""
    p = _member(w, l)
    q = random_below(w.random, w.rows.own.shape[1])
    if random_below(w.random, 2) == 0:
        q = _member(w, l)
    if p == q:
        return False
    row, able = w.rows.row[l], pb.able[l]
    way = random_below(w.random, 10)
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
    p = random_below(w.random, parts)
    while w.rows.row[l, p] < 0:
        p = p + 1 if p + 1 < parts else 0
    return p


@njit(cache=True)
def _amount(w: Walk, most: int) -> int:
    """One, all, or any number of at most so many."""
    way = random_below(w.random, 4)
    if way == 0:
        return 1
    return most if way == 1 else 1 + random_below(w.random, most)


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
    if random_below(w.random, 3) == 0:  # as many as fit
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
    k = 1 + random_below(w.random, width[p] - 1)
    taken = own[p] * k // width[p]
    row[q], width[q], own[q] = row[p], k, taken
    width[p] -= k
    own[p] -= taken
    return True


@njit(cache=True)
def _regroup(pb: Problem, w: Walk, l: int, p: int, q: int) -> bool:
    """Other rows of the same areas: p goes to q's row or to one of its own, rows become one or two."""
    row = w.rows.row[l]
    way = random_below(w.random, 4)
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
            if row[s] == i and s != q and (s == p or random_below(w.random, 2) == 0):
                row[s] = j
    else:  # some of p's area, in the same rows
        share = w.scratch[AREA, p] * (1 + random_below(w.random, 8)) / 8
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
