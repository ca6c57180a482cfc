"""Annealing over mixed partitions, compiled: the least volume in balance.

Work beyond the balance has a price, so that a walk may pass through states that are out of it. Only what
the changed blocks make, read and hold is counted again.
"""

# v: value; b: block, of runs lo to hi and low to high (both excluded); p: part

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.mixed_model import Array, MixedModel
from raddle.searches.hypergraph.mixed_moves import propose_exchange, propose_move, random_run
from raddle.searches.hypergraph.mixed_volume import DIMENSIONS, value_bytes, weight_bytes

EXCHANGES = 0.2  # of the proposals


class CoolingSchedule(NamedTuple):
    """How long, from which temperature to which, and the price of work beyond the balance, in bytes."""

    steps: int
    hot: float
    cold: float
    price: float


class CostedState(NamedTuple):
    """A state with what it costs."""

    axis: Array
    x: Array
    value_costs: Array  # bytes, by value
    weight_costs: Array  # bytes, by block
    load: Array  # work, by part


@njit(cache=True)
def anneal(
    m: MixedModel,
    axis: Array,
    x: Array,
    most: Array,
    allowed: Array,
    schedule: CoolingSchedule,
    seed: int,
) -> float:
    """Changes axis and x to the best that was found; its bytes, infinite if no state was in balance.

    `most` is the work that each part may have; `allowed` says which axes, by block.
    """
    np.random.seed(seed)
    blocks, parts = x.shape
    room, seen = np.zeros((parts, DIMENSIONS + 2)), np.full(len(m.nbytes), -1)
    new = CostedState(
        axis.copy(), x.copy(), np.zeros(len(m.nbytes)), np.zeros(blocks), np.zeros(parts)
    )  # fmt: skip
    old = CostedState(
        axis.copy(), np.zeros_like(x), np.zeros(len(m.nbytes)), np.zeros(blocks), np.zeros(parts)
    )
    _count(m, new, old, 0, blocks, room, seen, -2)
    _keep(new, old, 0, blocks)
    now, over = new.value_costs.sum() + new.weight_costs.sum(), _excess(new.load, most)
    slack = 1e-9 * most.sum()
    best = now if over <= slack else np.inf
    for step in range(schedule.steps):
        temperature = schedule.hot * (schedule.cold / schedule.hot) ** (step / schedule.steps)
        lo, hi = random_run(blocks)
        low = high = 0
        if np.random.random() < EXCHANGES:
            low, high = propose_exchange(m, new.axis, new.x, lo, hi)
        else:
            propose_move(m, new.axis, new.x, lo, hi, allowed)
        _count(m, new, old, lo, hi, room, seen, step)
        _count(m, new, old, low, high, room, seen, step)
        then, then_over = new.value_costs.sum() + new.weight_costs.sum(), _excess(new.load, most)
        change = then - now + schedule.price * (then_over - over)
        if change <= 0 or np.random.random() < math.exp(-change / temperature):
            now, over = then, then_over
            _keep(new, old, lo, hi)
            _keep(new, old, low, high)
            if now < best and over <= slack:
                best = now
                axis[:], x[:] = new.axis, new.x
        else:
            _keep(old, new, lo, hi)
            _keep(old, new, low, high)
    return best


@njit(cache=True)
def _count(
    m: MixedModel,
    new: CostedState,
    old: CostedState,
    lo: int,
    hi: int,
    room: Array,
    seen: Array,
    step: int,
) -> None:
    """What a changed run costs; values that were seen in this step are counted already."""
    for b in range(lo, hi):
        new.weight_costs[b] = weight_bytes(m, new.axis, new.x, b)
        units, before = m.units[b, new.axis[b]], m.units[b, old.axis[b]]
        for p in range(len(new.load)):
            new.load[p] += m.work[b] * (new.x[b, p] / units - old.x[b, p] / before)
        for i in range(m.touched_start[b], m.touched_start[b + 1]):
            v = m.touched[i]
            if seen[v] != step:
                seen[v] = step
                new.value_costs[v] = value_bytes(m, new.axis, new.x, v, room)


@njit(cache=True)
def _keep(source: CostedState, target: CostedState, lo: int, hi: int) -> None:
    if lo == hi:
        return
    target.value_costs[:], target.weight_costs[:], target.load[:] = (
        source.value_costs,
        source.weight_costs,
        source.load,
    )
    target.axis[lo:hi], target.x[lo:hi] = source.axis[lo:hi], source.x[lo:hi]


@njit(cache=True)
def _excess(load: Array, most: Array) -> float:
    """How far parts are above what they may have."""
    over = 0.0
    for p in range(len(load)):
        over += max(0.0, load[p] - most[p])
    return over
