"""Anneals coarse partitions: changes the counts x and updates the volume move by move.

In a *coarse* partition every filter is whole in one part; a *part* is a device's share. x[p, l] counts the
units (filters) of layer l in part p. A *map* is a feature map, made of *pieces*: the units of one layer,
then those of the next. Its *dense* readers need all units of it, its elementwise readers (an add) only
those with the same numbers (network.py). The *volume* is the elements that parts receive in a forward.

A *move* is a list of *shifts*; a shift changes the number of units of one layer in one part. After a shift,
the units received are computed again only for the maps that this layer makes or reads. A part receives
all units of a map that it lacks as soon as one of its units reads the map, so moving single units often
changes nothing. Most moves therefore take all units of a layer, or of several neighbouring layers, or as
many as fit, or exchange equal work. Work above a part's capacity (*overload*) has a price, in elements per
work, which is added to the volume; this price rises while parts are overloaded and falls while none is.
"""

# l, t: layers; v: map; p, q, s: parts; k: units moved; n: shifts in the log so far; m: the network as
# arrays (counts.py); w: walk, the state of an annealing run

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.counts import Array, CountModel, units_received
from raddle.searches.hypergraph.random_numbers import random_below

CHUNK = 1 << 15  # moves between two looks at the clock: about 20 ms
MAX_LAYERS = 8  # that move together


# Inlined: a call would take three times as long as the computation.
_units_received = njit(inline="always")(units_received.py_func)


class LayerNeighbours(NamedTuple):
    """Maps and layers connected to each layer.

    Those of layer l are the entries map_start[l] to map_start[l + 1] of maps, and layer_start[l] to
    layer_start[l + 1] of layers.
    """

    map_start: Array
    maps: Array  # that the layer makes or reads
    layer_start: Array
    layers: Array  # that make or read one of these maps, too


class CoarseWalk(NamedTuple):
    """The state of one annealing run; `_walk` changes it in place."""

    x: Array  # counts [part, layer]: the counts of a part are next to each other in memory
    work: Array  # by part
    received: Array  # [part, map] units received
    best: Array  # [part, layer] counts of least volume within the capacities
    # [VOLUME] of x and [BEST_VOLUME] of `best`, in elements; [PRICE] of overload, in elements per work
    totals: Array
    rng_state: Array  # of random_below (uint64)


VOLUME, BEST_VOLUME, PRICE = 0, 1, 2


def build_neighbours(m: CountModel) -> LayerNeighbours:
    """Finds, for each layer, the maps that it makes or reads, and the layers that share such a map."""
    maps: list[dict[int, None]] = [{} for _ in range(m.num_layers)]
    neighbours: list[dict[int, None]] = [{} for _ in range(m.num_layers)]
    # The layers of each map: of its pieces, of its dense readers, of its elementwise readers
    sides = (
        (m.piece_start, m.piece_layer),
        (m.dense_start, m.dense_layer),
        (m.elementwise_start, m.elementwise_layer),
    )
    for v in range(len(m.cost)):
        nearby = [int(l) for at, layer in sides for l in layer[at[v] : at[v + 1]]]
        for l in nearby:
            maps[l][v] = None
            neighbours[l].update(dict.fromkeys(t for t in nearby if t != l))
    return LayerNeighbours(*_flatten(maps), *_flatten(neighbours))


def _flatten(entries: list[dict[int, None]]) -> tuple[Array, Array]:
    """Returns where each set begins, and the members of all sets one after the other."""
    starts = np.cumsum([0, *(len(entry_set) for entry_set in entries)])
    return starts.astype(np.int64), np.array([i for group in entries for i in group], np.int64)


def start_walk(m: CountModel, x: Array, capacity: Array, seed: int) -> CoarseWalk:
    """Returns a walk that starts at counts x[layer, part]."""
    counts = np.ascontiguousarray(x.T, np.int64)
    received = np.zeros((counts.shape[0], len(m.cost)), np.int64)
    walk = CoarseWalk(
        counts,
        counts @ m.work,
        received,
        counts.copy(),
        np.zeros(3),
        np.array([seed * 2 + 1], np.uint64),
    )
    _count_volume(m, walk)
    within = bool((walk.work <= capacity).all())
    walk.totals[BEST_VOLUME] = walk.totals[VOLUME] if within else np.inf
    # At first, the work of an average part costs as much as the elements that an average part receives.
    walk.totals[PRICE] = (walk.totals[VOLUME] + 1) / m.total_work
    return walk


def anneal(
    m: CountModel,
    neighbours: LayerNeighbours,
    capacity: Array,
    walk: CoarseWalk,
    moves: int,
    hot: float,
    cold: float,
) -> Iterator[None]:
    """Anneals `walk` in place, from temperature `hot` to `cold` (in elements); yields after each chunk."""
    chunks = -(-moves // CHUNK)
    for i in range(chunks):
        begin, end = (hot * (cold / hot) ** (j / chunks) for j in (i, i + 1))
        _walk(m, neighbours, capacity, walk, min(CHUNK, moves - i * CHUNK), begin, end)
        yield


@njit(cache=True)
def _count_volume(m: CountModel, w: CoarseWalk) -> None:
    """Counts the units received and the volume from scratch."""
    w.totals[VOLUME] = 0
    for p in range(w.x.shape[0]):
        for v in range(len(m.cost)):
            w.received[p, v] = _units_received(m, w.x[p], v)
            w.totals[VOLUME] += m.cost[v] * w.received[p, v]


@njit(cache=True)
def _shift(
    m: CountModel, neighbours: LayerNeighbours, w: CoarseWalk, p: int, l: int, k: int
) -> int:
    """Puts k more units of layer l into part p; returns the growth of the volume."""
    part_counts, received, cost, maps = w.x[p], w.received[p], m.cost, neighbours.maps
    part_counts[l] += k
    w.work[p] += k * m.work[l]
    growth = 0
    for i in range(neighbours.map_start[l], neighbours.map_start[l + 1]):
        v = maps[i]
        units = _units_received(m, part_counts, v)
        growth += cost[v] * (units - received[v])
        received[v] = units
    return growth


@njit(cache=True)
def _random_layer(w: CoarseWalk, p: int) -> int:
    """Returns a random layer that has units in part p, or -1."""
    layers = w.x.shape[1]
    l = random_below(w.rng_state, layers)
    for _ in range(layers):
        if w.x[p, l] > 0:
            return l
        l = l + 1 if l + 1 < layers else 0
    return -1


@njit(cache=True)
def _random_other_part(w: CoarseWalk, p: int, l: int) -> int:
    """Returns a random part other than p, more often one that has units of the layer already."""
    parts = w.x.shape[0]
    q = p
    for _ in range(1 + random_below(w.rng_state, 8)):
        q = random_below(w.rng_state, parts - 1)
        q += q >= p
        if w.x[q, l] > 0:
            break
    return q


@njit(cache=True)
def _random_amount(w: CoarseWalk, units: int, fitting: int) -> int:
    """Returns how many to move: all (`units`), as many as fit (`fitting`), or a random power of two."""
    draw = random_below(w.rng_state, 8)
    if draw < 3:
        return units
    if draw < 6:
        return min(units, max(1, fitting))
    return min(units, 1 << random_below(w.rng_state, 10))


@njit(cache=True)
def _units_that_fit(m: CountModel, capacity: Array, w: CoarseWalk, p: int, l: int) -> int:
    """Returns how many more units of layer l fit into part p; units without work fit without limit."""
    return int((capacity[p] - w.work[p]) / m.work[l]) if m.work[l] > 0 else 1 << 40


@njit(cache=True)
def _log_shift(log: Array, at: int, p: int, l: int, k: int) -> int:
    """Writes a shift (part, layer, units; k < 0: fewer) at position `at`; returns the next position."""
    log[at, 0], log[at, 1], log[at, 2] = p, l, k
    return at + 1


@njit(cache=True)
def _log_move(log: Array, at: int, p: int, q: int, l: int, k: int) -> int:
    """Writes the two shifts that move k units of layer l from p to q; returns the next position."""
    return _log_shift(log, _log_shift(log, at, p, l, -k), q, l, k)


@njit(cache=True)
def _propose(
    m: CountModel, neighbours: LayerNeighbours, capacity: Array, w: CoarseWalk, log: Array
) -> int:
    """Writes the shifts of a random move to `log` [shift, (part, layer, units)]; returns their number."""
    parts = w.x.shape[0]
    p = random_below(w.rng_state, parts)
    l = _random_layer(w, p)
    if l < 0:
        return 0
    draw = random_below(w.rng_state, 16)
    if draw == 0:
        return _clear_layer(m, capacity, w, log, p, l)
    if draw == 1:
        return _gather_layer(m, capacity, w, log, p)
    q = _random_other_part(w, p, l)
    if draw < 12:
        k = _random_amount(w, w.x[p, l], _units_that_fit(m, capacity, w, q, l))
        n = _log_move(log, 0, p, q, l, k)
        moved_work = k * m.work[l]
    else:
        n, moved_work = _move_layers(m, neighbours, w, log, 0, p, q, l, MAX_LAYERS, np.inf)
    # Sometimes q gives about as much work in return, to p or to a third part.
    reply_draw = random_below(w.rng_state, 8)
    t = _random_layer(w, q)
    if reply_draw < 3 or t < 0 or t == l:
        return n
    s = p
    if reply_draw == 7 and parts > 2:  # to a third part
        s = _random_other_part(w, q, t)
    if reply_draw == 6:  # all units of layer t, whatever their work
        return _log_move(log, n, q, s, t, w.x[q, t])
    n, _ = _move_layers(
        m, neighbours, w, log, n, q, s, t, MAX_LAYERS if draw >= 12 else 1, moved_work
    )
    return n


@njit(cache=True)
def _move_layers(
    m: CountModel,
    neighbours: LayerNeighbours,
    w: CoarseWalk,
    log: Array,
    n: int,
    p: int,
    q: int,
    l: int,
    max_layers: int,
    limit: float,
) -> tuple[int, float]:
    """Moves a chain of up to `max_layers` neighbouring layers, from layer l on, from p to q, up to a limit
    of work. The move is only written to the log, which has n shifts already.

    Returns the number of shifts in the log and the work moved.
    """
    moved_work = 0.0
    for _ in range(1 + random_below(w.rng_state, max_layers)):
        k = w.x[p, l]
        if moved_work + k * m.work[l] > limit:
            k = min(k, int((limit - moved_work) / m.work[l]) + random_below(w.rng_state, 2))
        is_new = k > 0
        for i in range(n):
            is_new &= log[i, 1] != l
        if is_new:
            n = _log_move(log, n, p, q, l, k)
            moved_work += k * m.work[l]
        if moved_work >= limit or neighbours.layer_start[l] == neighbours.layer_start[l + 1]:
            break
        l = neighbours.layers[
            neighbours.layer_start[l]
            + random_below(w.rng_state, neighbours.layer_start[l + 1] - neighbours.layer_start[l])
        ]
    return n, moved_work


@njit(cache=True)
def _clear_layer(m: CountModel, capacity: Array, w: CoarseWalk, log: Array, p: int, l: int) -> int:
    """Moves all units of layer l out of part p, into parts that have the layer already and have room.

    Units that fit into none of these go to one random other part.
    """
    parts = w.x.shape[0]
    remaining = w.x[p, l]
    n = _log_shift(log, 0, p, l, -remaining)
    q = random_below(w.rng_state, parts)
    for _ in range(parts):
        if q != p and w.x[q, l] > 0:
            k = min(remaining, _units_that_fit(m, capacity, w, q, l))
            if k > 0:
                n = _log_shift(log, n, q, l, k)
                remaining -= k
                if remaining == 0:
                    return n
        q = q + 1 if q + 1 < parts else 0
    return _log_shift(log, n, _random_other_part(w, p, l), l, remaining)


@njit(cache=True)
def _gather_layer(m: CountModel, capacity: Array, w: CoarseWalk, log: Array, p: int) -> int:
    """Moves units of a random layer from other parts into p until p is full."""
    parts = w.x.shape[0]
    l = _random_layer(w, random_below(w.rng_state, parts))
    if l < 0:
        return 0
    room = min(m.units[l], _units_that_fit(m, capacity, w, p, l))
    if room <= 0:
        return 0
    n, taken = 1, 0  # entry 0 of the log is kept for part p and written last
    q = random_below(w.rng_state, parts)
    for _ in range(parts):
        if q != p and w.x[q, l] > 0 and taken < room:
            k = min(room - taken, w.x[q, l])
            n = _log_shift(log, n, q, l, -k)
            taken += k
        q = q + 1 if q + 1 < parts else 0
    _log_shift(log, 0, p, l, taken)
    return n if taken > 0 else 0


@njit(cache=True)
def _overload(capacity: Array, w: CoarseWalk) -> float:
    """Returns the work above the capacities, added up over the parts."""
    total = 0.0
    for p in range(len(capacity)):
        total += max(0.0, w.work[p] - capacity[p])
    return total


@njit(cache=True)
def _walk(
    m: CountModel,
    neighbours: LayerNeighbours,
    capacity: Array,
    w: CoarseWalk,
    moves: int,
    hot: float,
    cold: float,
) -> None:
    """Makes `moves` moves, from temperature `hot` to `cold`, and changes w in place."""
    # log: the shifts of one move, [shift, (part, layer, units)]. A move has about one shift for each part,
    # or two chains of up to MAX_LAYERS layers with two shifts for each layer.
    log = np.zeros((w.x.shape[0] + 4 * MAX_LAYERS, 3), np.int64)
    temperature, cooling = hot, (cold / hot) ** (1.0 / max(1, moves))
    for p in range(len(capacity)):
        w.work[p] = (w.x[p] * m.work).sum()  # from scratch: removes rounding errors
    total_overload = _overload(capacity, w)
    for step in range(moves):
        temperature *= cooling
        if step % 256 == 0:
            total_overload = _overload(capacity, w)
            w.totals[PRICE] *= 1.05 if total_overload > 0 else 0.97
        n = _propose(m, neighbours, capacity, w, log)
        if n == 0:
            continue
        growth = 0  # of the volume, elements
        overload_before, overload_change = 0.0, 0.0
        for i in range(n):
            p = log[i, 0]
            overload_before = max(0.0, w.work[p] - capacity[p])
            growth += _shift(m, neighbours, w, p, log[i, 1], log[i, 2])
            overload_change += max(0.0, w.work[p] - capacity[p]) - overload_before
        cost_change = growth + w.totals[PRICE] * overload_change
        # Accepted with probability min(1, exp(-cost_change / temperature)) (Metropolis)
        if cost_change <= 0 or (random_below(w.rng_state, 1 << 30) + 1) / (1 << 30) < np.exp(
            -cost_change / temperature
        ):
            w.totals[VOLUME] += growth
            total_overload += overload_change
            if w.totals[VOLUME] < w.totals[BEST_VOLUME] and (w.work <= capacity).all():
                w.totals[BEST_VOLUME] = w.totals[VOLUME]
                w.best[:] = w.x
        else:
            for i in range(n):  # undo
                _shift(m, neighbours, w, log[i, 0], log[i, 1], -log[i, 2])
