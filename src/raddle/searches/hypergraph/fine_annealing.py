"""Annealing on rows: moves that rewrite one layer, taken or undone by what they do to the volume."""

# l: layer; v: map; p: part

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.searches.hypergraph.fine_moves import move
from raddle.searches.hypergraph.fine_walk import (
    AREA,
    HEIGHT,
    LEAST,
    OVER,
    VOLUME,
    WORK,
    Array,
    Problem,
    Walk,
    overload,
    partial,
    received,
)
from raddle.searches.hypergraph.random_numbers import random_below


@njit(cache=True)
def anneal(
    pb: Problem, w: Walk, capacity: Array, moves: int, hot: float, cold: float, price: float
) -> None:
    """Moves of one layer each, from one temperature (elements) to another.

    Work above the capacity (by part) costs `price` elements a part's capacity.
    """
    layers, parts = w.rows.own.shape
    over = overload(w.work, capacity)
    for step in range(moves):
        heat = hot * (cold / hot) ** (step / moves)
        l = random_below(w.random, layers)
        own, row, width = w.rows.own[l], w.rows.row[l], w.rows.width[l]
        w.old[0], w.old[1], w.old[2] = own, row, width
        grown = -partial(pb, w, l)
        w.scratch[AREA] = w.scratch[HEIGHT] * width
        if not move(pb, w, l, capacity):
            own[:], row[:], width[:] = w.old[0], w.old[1], w.old[2]
            continue
        grown += partial(pb, w, l)
        w.scratch[WORK] = w.work + pb.each[l] * (w.scratch[HEIGHT] * width - w.scratch[AREA])
        above = overload(w.scratch[WORK], capacity)
        chance = (random_below(w.random, 1 << 30) + 1) / (1 << 30)
        allowed = -heat * np.log(chance) - price * (above - over)
        for p in range(parts):
            if own[p] != w.old[0, p] or width[p] != w.old[2, p]:
                for i in range(pb.touch_at[l], pb.touch_at[l + 1]):
                    v = pb.touch[i]
                    got = received(pb, w.rows.own, w.rows.width, v, p)
                    grown += pb.m.cost[v] * (got - w.got[p, v])
        if grown > allowed:
            own[:], row[:], width[:] = w.old[0], w.old[1], w.old[2]
            continue
        for p in range(parts):
            if own[p] != w.old[0, p] or width[p] != w.old[2, p]:
                for i in range(pb.touch_at[l], pb.touch_at[l + 1]):
                    v = pb.touch[i]
                    w.got[p, v] = received(pb, w.rows.own, w.rows.width, v, p)
        w.work[:] = w.scratch[WORK]
        over = above
        w.figures[VOLUME] += grown
        better = over == w.figures[OVER] and w.figures[VOLUME] < w.figures[LEAST]
        if over < w.figures[OVER] or better:
            w.figures[LEAST], w.figures[OVER] = w.figures[VOLUME], over
            w.best.own[:], w.best.row[:], w.best.width[:] = w.rows.own, w.rows.row, w.rows.width
