"""Moves between mixed partitions, compiled. They change a run of blocks: neighbours like to be alike.

shift      units go from a part to another one
exchange   the same, and as much work comes back in another run
copy       a run takes over what a neighbour has
turn       another axis, with the same shares
gather     all units of a part, or of all parts, go to one
swap       two parts change places, so that a stage that is filled differently fits its neighbours
"""

# b: block, of a run lo to hi (excluded); a: axis; p, q: parts

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.searches.hypergraph.mixed_model import Array, MixedModel
from raddle.searches.hypergraph.mixed_volume import active_parts

COPY, CHANGE_AXIS, GATHER, SWAP = range(1, 5)
NUM_DRAWS = 7  # the others are shifts


@njit(cache=True)
def apportion_units(fractions: Array, units: int, row: Array) -> None:
    """Whole numbers of units next to fractions of them; those cut off most are the first to get more."""
    remaining = units
    for p in range(len(row)):
        row[p] = int(fractions[p] * units + 1e-9)
        remaining -= row[p]
    while remaining > 0:
        best_part, largest = 0, -1.0
        for p in range(len(row)):
            remainder = fractions[p] * units - row[p]
            if remainder > largest:
                best_part, largest = p, remainder
        row[best_part] += 1
        remaining -= 1


@njit(cache=True)
def _change_axis(
    m: MixedModel,
    axis: Array,
    x: Array,
    lo: int,
    hi: int,
    letter: int,
    fractions: Array,
    allowed: Array,
) -> None:
    """Gives a run an axis and shares; blocks that may not have the axis stay as they are."""
    for b in range(lo, hi):
        for a in range(m.axis_count[b]):
            if m.letter[b, a] == letter and m.units[b, a] > 1 and allowed[b, a]:
                axis[b] = a
                apportion_units(fractions, m.units[b, a], x[b])


@njit(cache=True)
def _shift(
    m: MixedModel, axis: Array, x: Array, lo: int, hi: int, p: int, q: int, fraction: float
) -> float:
    """A fraction of every block of a run, at least a unit, from p to q; the work that goes with it."""
    moved_work = 0.0
    for b in range(lo, hi):
        units = m.units[b, axis[b]]
        count = min(x[b, p], max(1, int(fraction * units + 0.5)))
        x[b, p] -= count
        x[b, q] += count
        moved_work += m.work[b] * count / units
    return moved_work


@njit(cache=True)
def _random_fraction() -> float:
    """A fraction to shift: often the smallest, seldom much."""
    return 0.0 if np.random.random() < 0.5 else np.random.random() ** 2


@njit(cache=True)
def _random_active_part(row: Array) -> int:
    """One of the parts that have units."""
    at = np.random.randint(active_parts(row))
    for p in range(len(row)):
        if row[p] > 0:
            if at == 0:
                return p
            at -= 1
    return 0


@njit(cache=True)
def propose_move(m: MixedModel, axis: Array, x: Array, lo: int, hi: int, allowed: Array) -> None:
    """Changes a run in one of the ways above, but for an exchange; `allowed` says which axes, by block."""
    kind = np.random.randint(NUM_DRAWS)
    p, q = _random_active_part(x[lo]), np.random.randint(x.shape[1])
    if kind == COPY:
        other = lo - 1 if np.random.random() < 0.5 else hi
        if 0 <= other < len(x):
            letter = m.letter[other, axis[other]]
            _change_axis(
                m, axis, x, lo, hi, letter, x[other] / m.units[other, axis[other]], allowed
            )
    elif kind == CHANGE_AXIS:
        letter = m.letter[lo, np.random.randint(m.axis_count[lo])]
        for b in range(lo, hi):
            _change_axis(m, axis, x, b, b + 1, letter, x[b] / m.units[b, axis[b]], allowed)
    elif kind == GATHER:
        from_all = np.random.random() < 0.3
        for b in range(lo, hi):
            for other in range(x.shape[1]):
                if other != q and (from_all or other == p):
                    x[b, q] += x[b, other]
                    x[b, other] = 0
    elif kind == SWAP:
        for b in range(lo, hi):
            x[b, p], x[b, q] = x[b, q], x[b, p]
    else:
        _shift(m, axis, x, lo, hi, p, q, _random_fraction())


@njit(cache=True)
def propose_exchange(m: MixedModel, axis: Array, x: Array, lo: int, hi: int) -> tuple[int, int]:
    """Shifts units of a run, and as much work of another one back; which one that is, if there is."""
    p, q = _random_active_part(x[lo]), np.random.randint(x.shape[1])
    other_lo = np.random.randint(len(x))
    other_hi = min(len(x), other_lo + 1 + int(np.random.random() ** 2 * 4))
    if other_lo < hi and lo < other_hi:
        return 0, 0
    moved_work = _shift(m, axis, x, lo, hi, p, q, _random_fraction())
    run_work = m.work[other_lo:other_hi].sum()
    if run_work > 0:
        _shift(m, axis, x, other_lo, other_hi, q, p, moved_work / run_work)
    return other_lo, other_hi


@njit(cache=True)
def random_run(blocks: int) -> tuple[int, int]:
    """A block, or a run of them: the first, and one after the last."""
    lo = np.random.randint(blocks)
    hi = lo + 1
    if np.random.random() < 0.6:
        hi = min(blocks, lo + 1 + int(np.random.random() ** 2 * blocks))
    return lo, hi


@njit(cache=True)
def seed_generator(seed: int) -> None:
    """What is drawn from now on, in compiled functions, depends on the seed alone."""
    np.random.seed(seed)
