"""Anneals mixed partitions, JIT-compiled: looks for the fewest bytes sent while the work is balanced.

A *mixed* partition splits each layer along an axis of its own: samples, filters, input channels, height or
width. A *block* is a layer with the operators that follow it; a *part* is a device's share; the *units* of
an axis are samples, filters, ... (mixed_blocks.py). A *state* is an axis for each block and the units
x[b, p] of each part. Each part has a maximum of work; a state is *in balance* if no part exceeds it. Work
above the maximum has a price, so a run may pass through states that are out of balance. After a move only
the costs of the changed blocks and of the values that they make or read are counted again.
"""

# v: value; b: block; p: part; m: the model (mixed_model.py). A move changes a run of blocks, lo to hi - 1;
# an exchange changes two runs. m.nbytes: by value; m.touched: the values that each block computes or reads;
# scratch: temporary space for value_bytes (mixed_volume.allocate_scratch)

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.mixed_model import Array, MixedModel
from raddle.searches.hypergraph.mixed_moves import propose_exchange, propose_move, random_run
from raddle.searches.hypergraph.mixed_volume import DIMENSIONS, value_bytes, weight_bytes

EXCHANGE_SHARE = 0.2  # of the proposals


class CoolingSchedule(NamedTuple):
    """The length of an annealing run, its temperatures, and the price of work above the balance."""

    steps: int
    hot: float  # first temperature, bytes
    cold: float  # last temperature, bytes
    price: float  # bytes per FLOP above the balance


class CostedState(NamedTuple):
    """A state and its costs."""

    axis: Array  # by block: the position of its axis in MixedBlock.axes
    x: Array  # units [block, part]
    value_costs: Array  # bytes of a value and its gradient that cross parts, by value
    weight_costs: Array  # bytes that synchronise weights, by block
    part_work: Array  # work, by part


@njit(cache=True)
def anneal(
    m: MixedModel,
    axis: Array,
    x: Array,
    max_work: Array,
    allowed: Array,
    schedule: CoolingSchedule,
    seed: int,
) -> float:
    """Changes axis and x to the best state found; returns its bytes, or inf if no state is in balance.

    max_work: by part; allowed: a mask [block, axis] of the axes that a move may choose.
    """
    np.random.seed(seed)
    blocks, parts = x.shape
    # scratch: as allocate_scratch makes it, which is not JIT-compiled
    scratch, counted_in_step = np.zeros((parts, DIMENSIONS + 2)), np.full(len(m.nbytes), -1)
    # new: the state with the proposed move; old: the last accepted one, to which a rejected move returns
    new = CostedState(
        axis.copy(), x.copy(), np.zeros(len(m.nbytes)), np.zeros(blocks), np.zeros(parts)
    )  # fmt: skip
    old = CostedState(
        axis.copy(), np.zeros_like(x), np.zeros(len(m.nbytes)), np.zeros(blocks), np.zeros(parts)
    )
    # Counts all values: none of them has been counted in a step with the number -2.
    _recount(m, new, old, 0, blocks, scratch, counted_in_step, -2)
    _copy_run(new, old, 0, blocks)
    current, current_overload = (
        new.value_costs.sum() + new.weight_costs.sum(),
        _overload(new.part_work, max_work),
    )
    slack = 1e-9 * max_work.sum()  # for rounding
    best = current if current_overload <= slack else np.inf
    for step in range(schedule.steps):
        temperature = schedule.hot * (schedule.cold / schedule.hot) ** (step / schedule.steps)
        lo, hi = random_run(blocks)
        other_lo = other_hi = 0  # the second run of an exchange; here: none
        if np.random.random() < EXCHANGE_SHARE:
            other_lo, other_hi = propose_exchange(m, new.axis, new.x, lo, hi)
        else:
            propose_move(m, new.axis, new.x, lo, hi, allowed)
        _recount(m, new, old, lo, hi, scratch, counted_in_step, step)
        _recount(m, new, old, other_lo, other_hi, scratch, counted_in_step, step)
        proposed, proposed_overload = (
            new.value_costs.sum() + new.weight_costs.sum(),
            _overload(new.part_work, max_work),
        )
        change = proposed - current + schedule.price * (proposed_overload - current_overload)
        # Accepted with probability min(1, exp(-change / temperature)) (Metropolis)
        if change <= 0 or np.random.random() < math.exp(-change / temperature):
            current, current_overload = proposed, proposed_overload
            _copy_run(new, old, lo, hi)
            _copy_run(new, old, other_lo, other_hi)
            if current < best and current_overload <= slack:
                best = current
                axis[:], x[:] = new.axis, new.x
        else:
            _copy_run(old, new, lo, hi)
            _copy_run(old, new, other_lo, other_hi)
    return best


@njit(cache=True)
def _recount(
    m: MixedModel,
    new: CostedState,
    old: CostedState,
    lo: int,
    hi: int,
    scratch: Array,
    counted_in_step: Array,
    step: int,
) -> None:
    """Updates the costs of `new` after a change of the blocks lo to hi - 1.

    counted_in_step[v] is the last step in which value v was counted: no value is counted twice in a step.
    """
    for b in range(lo, hi):
        new.weight_costs[b] = weight_bytes(m, new.axis, new.x, b)
        units, old_units = m.units[b, new.axis[b]], m.units[b, old.axis[b]]
        for p in range(len(new.part_work)):
            new.part_work[p] += m.work[b] * (new.x[b, p] / units - old.x[b, p] / old_units)
        for i in range(m.touched_start[b], m.touched_start[b + 1]):
            v = m.touched[i]
            if counted_in_step[v] != step:
                counted_in_step[v] = step
                new.value_costs[v] = value_bytes(m, new.axis, new.x, v, scratch)


@njit(cache=True)
def _copy_run(source: CostedState, target: CostedState, lo: int, hi: int) -> None:
    """Copies the blocks lo to hi - 1, and all costs."""
    if lo == hi:
        return
    target.value_costs[:], target.weight_costs[:], target.part_work[:] = (
        source.value_costs,
        source.weight_costs,
        source.part_work,
    )
    target.axis[lo:hi], target.x[lo:hi] = source.axis[lo:hi], source.x[lo:hi]


@njit(cache=True)
def _overload(part_work: Array, max_work: Array) -> float:
    """Returns the work of all parts above their maximum."""
    total = 0.0
    for p in range(len(part_work)):
        total += max(0.0, part_work[p] - max_work[p])
    return total
