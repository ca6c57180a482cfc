"""Simulated annealing on the counts of a coarse partition, with volume kept up move by move.

A move is a list of shifts, each of units of one layer into or out of one part; only the maps that touch
the layer are counted again. Because a part pays for a map as soon as one unit reads it, single units see
plateaus: most moves take all units of a layer, or of several that are near, as many as fit, or exchange
equal work. Overload is priced, and the price follows the search until what it finds is within capacities.
"""

# l, t: layers; v: map; p, q, s: parts; k: units moved

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.counts import Array, Model, units_received
from raddle.searches.hypergraph.drawing import below

CHUNK = 1 << 15  # moves between two looks at the clock: some 20 ms
LONG = 8  # layers that move together at most


# a call would cost three times what it computes
_lacking = njit(inline="always")(units_received.py_func)


class Touch(NamedTuple):
    """What is around every layer; `*_at` are where a layer's begin."""

    map_at: Array
    map: Array  # whose crossing depends on the layer
    near_at: Array
    near: Array  # layers with which it shares a map


class State(NamedTuple):
    """A walk: what is changed in place by `_walk`."""

    x: Array  # [part, layer], so that a part's counts lie together
    work: Array  # by part
    got: Array  # [part, map] units received
    best: Array  # [part, layer] of the least volume within the capacities
    figures: Array  # VOLUME, LEAST of `best`, PRICE of overload (float)
    random: Array  # state of the generator (uint64)


VOLUME, LEAST, PRICE = 0, 1, 2


def touching(m: Model) -> Touch:
    """Which maps have to be counted again where a layer's counts change, and which layers are near."""
    maps: list[dict[int, None]] = [{} for _ in range(m.layers)]
    near: list[dict[int, None]] = [{} for _ in range(m.layers)]
    sides = (
        (m.piece_at, m.piece_layer),
        (m.dense_at, m.dense_layer),
        (m.alike_at, m.alike_layer),
    )
    for v in range(len(m.cost)):
        around = [int(l) for at, layer in sides for l in layer[at[v] : at[v + 1]]]
        for l in around:
            maps[l][v] = None
            near[l].update(dict.fromkeys(t for t in around if t != l))
    return Touch(*_lists(maps), *_lists(near))


def _lists(entries: list[dict[int, None]]) -> tuple[Array, Array]:
    ends = np.cumsum([0, *(len(own) for own in entries)])
    return ends.astype(np.int64), np.array([i for own in entries for i in own], np.int64)


def state(m: Model, x: Array, capacity: Array, seed: int) -> State:
    """A walk that starts at counts [layer, part]."""
    own = np.ascontiguousarray(x.T, np.int64)
    got = np.zeros((own.shape[0], len(m.cost)), np.int64)
    fresh = State(
        own, own @ m.work, got, own.copy(), np.zeros(3), np.array([seed * 2 + 1], np.uint64)
    )
    _count(m, fresh)
    within = bool((fresh.work <= capacity).all())
    fresh.figures[LEAST] = fresh.figures[VOLUME] if within else np.inf
    # an average part's receipts buy an average part's work
    fresh.figures[PRICE] = (fresh.figures[VOLUME] + 1) / m.total
    return fresh


def anneal(
    m: Model, touch: Touch, capacity: Array, walk: State, moves: int, hot: float, cold: float
) -> Iterator[None]:
    """A run from one temperature (elements) to another that changes `walk`, chunk by chunk."""
    chunks = -(-moves // CHUNK)
    for i in range(chunks):
        begin, end = (hot * (cold / hot) ** (j / chunks) for j in (i, i + 1))
        _walk(m, touch, capacity, walk, min(CHUNK, moves - i * CHUNK), begin, end)
        yield


@njit(cache=True)
def _count(m: Model, w: State) -> None:
    w.figures[VOLUME] = 0
    for p in range(w.x.shape[0]):
        for v in range(len(m.cost)):
            w.got[p, v] = _lacking(m, w.x[p], v)
            w.figures[VOLUME] += m.cost[v] * w.got[p, v]


@njit(cache=True)
def _shift(m: Model, touch: Touch, w: State, p: int, l: int, k: int) -> int:
    """Puts k more units of a layer into a part; what the volume grows by."""
    column, got, cost, maps = w.x[p], w.got[p], m.cost, touch.map
    column[l] += k
    w.work[p] += k * m.work[l]
    grown = 0
    for i in range(touch.map_at[l], touch.map_at[l + 1]):
        v = maps[i]
        lacking = _lacking(m, column, v)
        grown += cost[v] * (lacking - got[v])
        got[v] = lacking
    return grown


@njit(cache=True)
def _held(w: State, p: int) -> int:
    """A layer that has units in a part, or -1."""
    layers = w.x.shape[1]
    l = below(w.random, layers)
    for _ in range(layers):
        if w.x[p, l] > 0:
            return l
        l = l + 1 if l + 1 < layers else 0
    return -1


@njit(cache=True)
def _other(w: State, p: int, l: int) -> int:
    """Another part, more often one that has units of the layer already."""
    parts = w.x.shape[0]
    q = p
    for _ in range(1 + below(w.random, 8)):
        q = below(w.random, parts - 1)
        q += q >= p
        if w.x[q, l] > 0:
            break
    return q


@njit(cache=True)
def _some(w: State, most: int, fitting: int) -> int:
    """How many of at most `most` units to move."""
    way = below(w.random, 8)
    if way < 3:
        return most
    if way < 6:
        return min(most, max(1, fitting))
    return min(most, 1 << below(w.random, 10))


@njit(cache=True)
def _fitting(m: Model, capacity: Array, w: State, p: int, l: int) -> int:
    return int((capacity[p] - w.work[p]) / m.work[l]) if m.work[l] > 0 else 1 << 40


@njit(cache=True)
def _note(log: Array, at: int, p: int, l: int, k: int) -> int:
    log[at, 0], log[at, 1], log[at, 2] = p, l, k
    return at + 1


@njit(cache=True)
def _move(log: Array, at: int, p: int, q: int, l: int, k: int) -> int:
    return _note(log, _note(log, at, p, l, -k), q, l, k)


@njit(cache=True)
def _propose(m: Model, touch: Touch, capacity: Array, w: State, log: Array) -> int:
    """Writes the shifts of a random move; how many there are."""
    parts = w.x.shape[0]
    p = below(w.random, parts)
    l = _held(w, p)
    if l < 0:
        return 0
    way = below(w.random, 16)
    if way == 0:
        return _clear(m, capacity, w, log, p, l)
    if way == 1:
        return _gather(m, capacity, w, log, p)
    q = _other(w, p, l)
    if way < 12:
        k = _some(w, w.x[p, l], _fitting(m, capacity, w, q, l))
        n = _move(log, 0, p, q, l, k)
        given = k * m.work[l]
    else:
        n, given = _several(m, touch, w, log, 0, p, q, l, LONG, np.inf)
    # the receiver hands on as much work: back to the giver, or to a third part
    onward = below(w.random, 8)
    t = _held(w, q)
    if onward < 3 or t < 0 or t == l:
        return n
    s = p
    if onward == 7 and parts > 2:
        s = _other(w, q, t)
    if onward == 6:
        return _move(log, n, q, s, t, w.x[q, t])
    n, _ = _several(m, touch, w, log, n, q, s, t, LONG if way >= 12 else 1, given)
    return n


@njit(cache=True)
def _several(
    m: Model,
    touch: Touch,
    w: State,
    log: Array,
    n: int,
    p: int,
    q: int,
    l: int,
    most: int,
    limit: float,
) -> tuple[int, float]:
    """Layers on a walk through neighbours move from a part to another, up to a limit of work."""
    given = 0.0
    for _ in range(1 + below(w.random, most)):
        k = w.x[p, l]
        if given + k * m.work[l] > limit:
            k = min(k, int((limit - given) / m.work[l]) + below(w.random, 2))
        fresh = k > 0
        for i in range(n):
            fresh &= log[i, 1] != l
        if fresh:
            n = _move(log, n, p, q, l, k)
            given += k * m.work[l]
        if given >= limit or touch.near_at[l] == touch.near_at[l + 1]:
            break
        l = touch.near[touch.near_at[l] + below(w.random, touch.near_at[l + 1] - touch.near_at[l])]
    return n, given


@njit(cache=True)
def _clear(m: Model, capacity: Array, w: State, log: Array, p: int, l: int) -> int:
    """All units of a layer leave a part for others that have units of it, as they fit."""
    parts = w.x.shape[0]
    rest = w.x[p, l]
    n = _note(log, 0, p, l, -rest)
    q = below(w.random, parts)
    for _ in range(parts):
        if q != p and w.x[q, l] > 0:
            k = min(rest, _fitting(m, capacity, w, q, l))
            if k > 0:
                n = _note(log, n, q, l, k)
                rest -= k
                if rest == 0:
                    return n
        q = q + 1 if q + 1 < parts else 0
    return _note(log, n, _other(w, p, l), l, rest)


@njit(cache=True)
def _gather(m: Model, capacity: Array, w: State, log: Array, p: int) -> int:
    """A part takes units of a layer from others until it is full."""
    parts = w.x.shape[0]
    l = _held(w, below(w.random, parts))
    if l < 0:
        return 0
    room = min(m.units[l], _fitting(m, capacity, w, p, l))
    if room <= 0:
        return 0
    n, taken = 1, 0
    q = below(w.random, parts)
    for _ in range(parts):
        if q != p and w.x[q, l] > 0 and taken < room:
            k = min(room - taken, w.x[q, l])
            n = _note(log, n, q, l, -k)
            taken += k
        q = q + 1 if q + 1 < parts else 0
    _note(log, 0, p, l, taken)
    return n if taken > 0 else 0


@njit(cache=True)
def _over(capacity: Array, w: State) -> float:
    over = 0.0
    for p in range(len(capacity)):
        over += max(0.0, w.work[p] - capacity[p])
    return over


@njit(cache=True)
def _walk(
    m: Model, touch: Touch, capacity: Array, w: State, moves: int, hot: float, cold: float
) -> None:
    log = np.zeros((w.x.shape[0] + 4 * LONG, 3), np.int64)
    heat, cooling = hot, (cold / hot) ** (1.0 / max(1, moves))
    for p in range(len(capacity)):
        w.work[p] = (w.x[p] * m.work).sum()  # sheds what rounding has added up
    over = _over(capacity, w)
    for step in range(moves):
        heat *= cooling
        if step % 256 == 0:
            over = _over(capacity, w)
            w.figures[PRICE] *= 1.05 if over > 0 else 0.97
        n = _propose(m, touch, capacity, w, log)
        if n == 0:
            continue
        grown = 0
        before, after = 0.0, 0.0
        for i in range(n):
            p = log[i, 0]
            before = max(0.0, w.work[p] - capacity[p])
            grown += _shift(m, touch, w, p, log[i, 1], log[i, 2])
            after += max(0.0, w.work[p] - capacity[p]) - before
        worse = grown + w.figures[PRICE] * after
        if worse <= 0 or (below(w.random, 1 << 30) + 1) / (1 << 30) < np.exp(-worse / heat):
            w.figures[VOLUME] += grown
            over += after
            if w.figures[VOLUME] < w.figures[LEAST] and (w.work <= capacity).all():
                w.figures[LEAST] = w.figures[VOLUME]
                w.best[:] = w.x
        else:
            for i in range(n):
                _shift(m, touch, w, log[i, 0], log[i, 1], -log[i, 2])
