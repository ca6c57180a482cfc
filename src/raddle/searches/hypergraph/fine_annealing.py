"""Anneals fine partitions by moves that change the rows of one layer (fine_moves.py).

A *fine* partition may put the input channels of one filter into different parts; a *part* is a device's
share. In each layer the parts form *rows*: the parts of a row compute the same filters, each over its own
channels (fine_rows.py). The *width* of a part is its number of channels, the *height* of its row the number
of filters, and its *area* their product. A part *owns* the filters whose partial results it sums.

A move is accepted or undone by its effect on the volume (elements that cross parts in a forward) and on the
overload (work above the capacities). fine_walk.py defines the state.
"""

# l: layer; v: feature map; p: part; pb: the problem; w: walk, the state of the run; cell: one input channel
# of one filter. w.rows: arrays [layer, part]; w.old_rows: owned, row and width of layer l before the move;
# w.received: units [part, map]; w.scratch: temporary arrays by part; pb.maps: maps that a layer makes or
# reads

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.searches.hypergraph.fine_moves import propose_move
from raddle.searches.hypergraph.fine_walk import (
    AREA,
    BEST_VOLUME,
    HEIGHT,
    OVERLOAD,
    VOLUME,
    WORK,
    Array,
    FineProblem,
    FineWalk,
    overload,
    partial_sum_elements,
    units_received,
)
from raddle.searches.hypergraph.random_numbers import random_below


@njit(cache=True)
def anneal(
    pb: FineProblem, w: FineWalk, capacity: Array, moves: int, hot: float, cold: float, price: float
) -> None:
    """Makes `moves` moves and changes w in place, from temperature `hot` to `cold` (in elements).

    capacity: most work, by part; price: elements that an overload by one part's capacity costs.
    """
    layers, parts = w.rows.owned.shape
    current_overload = overload(w.work, capacity)
    for step in range(moves):
        temperature = hot * (cold / hot) ** (step / moves)
        l = random_below(w.rng_state, layers)
        owned, row, width = w.rows.owned[l], w.rows.row[l], w.rows.width[l]
        w.old_rows[0], w.old_rows[1], w.old_rows[2] = owned, row, width
        growth = -partial_sum_elements(pb, w, l)  # of the volume; the call also writes the heights
        w.scratch[AREA] = w.scratch[HEIGHT] * width
        if not propose_move(pb, w, l, capacity):
            owned[:], row[:], width[:] = w.old_rows[0], w.old_rows[1], w.old_rows[2]
            continue
        growth += partial_sum_elements(pb, w, l)
        # The work of a part changes by that of its new cells (height x width) less its old ones.
        w.scratch[WORK] = w.work + pb.cell_work[l] * (w.scratch[HEIGHT] * width - w.scratch[AREA])
        new_overload = overload(w.scratch[WORK], capacity)
        random_fraction = (random_below(w.rng_state, 1 << 30) + 1) / (1 << 30)
        # The move is accepted if the volume grows by less than this (Metropolis).
        max_growth = -temperature * np.log(random_fraction) - price * (
            new_overload - current_overload
        )
        for p in range(parts):
            if owned[p] != w.old_rows[0, p] or width[p] != w.old_rows[2, p]:
                for i in range(pb.map_start[l], pb.map_start[l + 1]):
                    v = pb.maps[i]
                    new_received = units_received(pb, w.rows.owned, w.rows.width, v, p)
                    growth += pb.m.cost[v] * (new_received - w.received[p, v])
        if growth > max_growth:
            owned[:], row[:], width[:] = w.old_rows[0], w.old_rows[1], w.old_rows[2]
            continue
        for p in range(parts):
            if owned[p] != w.old_rows[0, p] or width[p] != w.old_rows[2, p]:
                for i in range(pb.map_start[l], pb.map_start[l + 1]):
                    v = pb.maps[i]
                    w.received[p, v] = units_received(pb, w.rows.owned, w.rows.width, v, p)
        w.work[:] = w.scratch[WORK]
        current_overload = new_overload
        w.totals[VOLUME] += growth
        is_better = (
            current_overload == w.totals[OVERLOAD] and w.totals[VOLUME] < w.totals[BEST_VOLUME]
        )
        if current_overload < w.totals[OVERLOAD] or is_better:
            w.totals[BEST_VOLUME], w.totals[OVERLOAD] = w.totals[VOLUME], current_overload
            w.best.owned[:], w.best.row[:], w.best.width[:] = w.rows.owned, w.rows.row, w.rows.width
