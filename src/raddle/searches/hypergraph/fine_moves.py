"""Makes random moves for the annealing of fine partitions: each changes the rows of one layer.

A *fine* partition may put the input channels of one filter into different parts; a *part* is a device's
share. A *row* (fine_rows.py) is a set of filters of a layer whose channels are divided among the parts of
the row. Each part is in one row of a layer, or in none (-1). It computes all filters of its row over
`width` channels, and owns `owned` filters: it sums their partial results and has their
output. Its *area* is filters of the row x width.
"""

# l: layer; p, q, s: parts; i, j: rows; k: filters or channels moved; pb: the problem (fine_walk.py);
# pb.m: the counts of the network (counts.py), pb.m.units: filters by layer;
# pb.channels: by layer, input channels of a filter;
# pb.splittable: by layer, whether a filter's channels may be in several parts; pb.cell_work: work of one
# channel of one filter; w: the state of the run; w.scratch[AREA]: areas by part before the move

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.searches.hypergraph.fine_rows import apportion
from raddle.searches.hypergraph.fine_walk import AREA, Array, FineProblem, FineWalk
from raddle.searches.hypergraph.random_numbers import random_below


@njit(cache=True)
def propose_move(pb: FineProblem, w: FineWalk, l: int, capacity: Array) -> bool:
    """Changes the rows of layer l at random; returns False if the drawn move is impossible.

    capacity: most work, by part.
    """
    p = _random_member(w, l)
    q = random_below(w.rng_state, w.rows.owned.shape[1])
    if random_below(w.rng_state, 2) == 0:
        q = _random_member(w, l)
    if p == q:
        return False
    row, splittable = w.rows.row[l], pb.splittable[l]
    draw = random_below(w.rng_state, 10)
    if draw == 0:
        return _swap_parts(w, l, p, q)
    if row[q] < 0:
        if splittable and draw < 5:
            return _join_row(pb, w, l, p, q)
        return _give_filters(pb, w, l, p, q, capacity)
    if row[p] == row[q]:
        if draw < 4:
            return _give_width(w, l, p, q)
        if draw < 7:
            return _give_sums(w, l, p, q)
        return _regroup(pb, w, l, p, q)
    if splittable and draw < 4:
        return _regroup(pb, w, l, p, q)
    return _give_filters(pb, w, l, p, q, capacity)


@njit(cache=True)
def _random_member(w: FineWalk, l: int) -> int:
    """Returns a random part that is in a row of layer l."""
    parts = w.rows.owned.shape[1]
    p = random_below(w.rng_state, parts)
    while w.rows.row[l, p] < 0:
        p = p + 1 if p + 1 < parts else 0
    return p


@njit(cache=True)
def _random_amount(w: FineWalk, maximum: int) -> int:
    """Returns 1, `maximum`, or a random number between them."""
    draw = random_below(w.rng_state, 4)
    if draw == 0:
        return 1
    return maximum if draw == 1 else 1 + random_below(w.rng_state, maximum)


@njit(cache=True)
def _swap_parts(w: FineWalk, l: int, p: int, q: int) -> bool:
    """Swaps two parts in the layer: their rows, widths and owned filters."""
    for a in (w.rows.owned[l], w.rows.row[l], w.rows.width[l]):
        a[p], a[q] = a[q], a[p]
    return True


@njit(cache=True)
def _leave_layer(w: FineWalk, l: int, p: int) -> None:
    """Takes part p out of layer l."""
    w.rows.owned[l, p], w.rows.row[l, p], w.rows.width[l, p] = 0, -1, 0


@njit(cache=True)
def _free_row(w: FineWalk, l: int, p: int) -> int:
    """Returns the number of a row that no part is in: p if possible, else the next free one after p."""
    row = w.rows.row[l]
    i = p
    while True:
        taken = False
        for j in row:
            taken = taken or j == i
        if not taken:
            return i
        i = i + 1 if i + 1 < len(row) else 0


@njit(cache=True)
def _give_filters(pb: FineProblem, w: FineWalk, l: int, p: int, q: int, capacity: Array) -> bool:
    """Moves filters that p owns to q: into q's row, or into a new row if q is in none."""
    owned, row, width = w.rows.owned[l], w.rows.row[l], w.rows.width[l]
    if owned[p] == 0:
        return False
    k = _random_amount(w, owned[p])
    new_width = width[q] if row[q] >= 0 else pb.channels[l]
    if random_below(w.rng_state, 3) == 0:  # as many as fit
        filter_work = max(1e-30, pb.cell_work[l] * new_width)  # an embedding has no work
        room = max(0.0, capacity[q] - w.work[q])
        k = min(owned[p], max(1, np.int64(min(1e15, room / filter_work))))
    if row[q] < 0:
        row[q], width[q] = _free_row(w, l, q), pb.channels[l]
    owned[p] -= k
    owned[q] += k
    remaining = 0
    for s in range(len(owned)):
        if row[s] == row[p]:
            remaining += owned[s]
    if remaining == 0:  # p's row has no filters left: its parts leave the layer
        i = row[p]
        for s in range(len(owned)):
            if row[s] == i:
                _leave_layer(w, l, s)
    return True


@njit(cache=True)
def _give_width(w: FineWalk, l: int, p: int, q: int) -> bool:
    """Moves channels from p to q in the same row; p leaves the layer if it has none left."""
    owned, width = w.rows.owned[l], w.rows.width[l]
    k = _random_amount(w, width[p])
    width[p] -= k
    width[q] += k
    if width[p] == 0:
        owned[q] += owned[p]
        _leave_layer(w, l, p)
    return True


@njit(cache=True)
def _give_sums(w: FineWalk, l: int, p: int, q: int) -> bool:
    """Moves the ownership of filters from p to q in the same row: q then sums their partial results."""
    owned = w.rows.owned[l]
    if owned[p] == 0:
        return False
    k = _random_amount(w, owned[p])
    owned[p] -= k
    owned[q] += k
    return True


@njit(cache=True)
def _join_row(pb: FineProblem, w: FineWalk, l: int, p: int, q: int) -> bool:
    """Puts q, which is new to the layer, into p's row, with a share of p's channels and filters."""
    owned, row, width = w.rows.owned[l], w.rows.row[l], w.rows.width[l]
    if width[p] < 2:
        return False
    k = 1 + random_below(w.rng_state, width[p] - 1)
    taken = owned[p] * k // width[p]
    row[q], width[q], owned[q] = row[p], k, taken
    width[p] -= k
    owned[p] -= taken
    return True


@njit(cache=True)
def _regroup(pb: FineProblem, w: FineWalk, l: int, p: int, q: int) -> bool:
    """Changes which parts form a row, and rebuilds the rows so that parts keep about their areas.

    p changes to q's row or to a new one, two rows merge, a row is divided, p and q swap rows, or p gives
    some of its area to q.
    """
    row = w.rows.row[l]
    draw = random_below(w.rng_state, 4)
    if row[p] != row[q]:
        if draw < 2:
            row[p] = row[q]
        elif draw == 2:
            i, j = row[p], row[q]
            for s in range(len(row)):
                if row[s] == i:
                    row[s] = j
        else:  # swap rows
            row[p], row[q] = row[q], row[p]
    elif draw < 2:
        row[p] = _free_row(w, l, p)
    elif draw == 2:
        i, j = row[p], _free_row(w, l, p)
        for s in range(len(row)):
            if row[s] == i and s != q and (s == p or random_below(w.rng_state, 2) == 0):
                row[s] = j
    else:  # the rows stay; some of p's area goes to q
        share = w.scratch[AREA, p] * (1 + random_below(w.rng_state, 8)) / 8
        w.scratch[AREA, p] -= share
        w.scratch[AREA, q] += share
        done = _rebuild_rows(pb, w, l)
        w.scratch[AREA, p] += share
        w.scratch[AREA, q] -= share
        return done
    return _rebuild_rows(pb, w, l)


@njit(cache=True)
def _rebuild_rows(pb: FineProblem, w: FineWalk, l: int) -> bool:
    """Computes filters per row, widths and owned filters anew, in proportion to the parts' areas.

    Returns False if there are too few channels or filters for the rows.
    """
    owned, row, width, area = w.rows.owned[l], w.rows.row[l], w.rows.width[l], w.scratch[AREA]
    parts = len(owned)
    row_area = np.zeros(parts)
    row_parts = np.zeros(parts, np.int64)
    for p in range(parts):
        if row[p] >= 0 and area[p] <= 0:
            _leave_layer(w, l, p)
        if row[p] >= 0:
            row_area[row[p]] += area[p]
            row_parts[row[p]] += 1
    if row_parts.max() > pb.channels[l] or (row_parts > 0).sum() > pb.m.units[l]:
        return False
    used_rows = np.flatnonzero(row_parts > 0)
    # The last argument of apportion is the least share: a row has at least 1 filter, a part reads at
    # least 1 channel, and may own 0 filters. height: filters of each row
    height = apportion(pb.m.units[l], row_area[used_rows], 1)
    for n, i in enumerate(used_rows):
        inside = np.flatnonzero(row == i)
        width[inside] = apportion(pb.channels[l], area[inside], 1)
        owned[inside] = apportion(height[n], area[inside], 0)
    return True
