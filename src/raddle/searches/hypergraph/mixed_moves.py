"""Makes random moves between mixed partitions, JIT-compiled.

A *mixed* partition splits each layer along an axis of its own: samples, filters, input channels, height or
width. A *block* is a layer with the operators that follow it; a *part* is a device's share; the *units* of
an axis are samples, filters, ... (mixed_blocks.py). A partition is an axis for each block and the units
x[b, p] of each part. A part's *shares* are its fractions of the units.

A move changes a *run* of consecutive blocks in the same way, because neighbouring blocks are often best
split alike:

shift         units go from one part to another
exchange      a shift, and about as much work goes back in another run of blocks
copy          the run gets the axis and the shares of a neighbouring block
change axis   another axis with the same shares
gather        all units of one part, or of all parts, go to one part
swap          two parts swap their units, so that a run can fit to its neighbours' order of parts
"""

# b: block, of a run lo to hi - 1; a: axis, by its position in MixedBlock.axes; p, q: parts; axis: by block;
# x: units [block, part]; m: the model (mixed_model.py)

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.searches.hypergraph.mixed_model import Array, MixedModel
from raddle.searches.hypergraph.mixed_volume import active_parts

COPY, CHANGE_AXIS, GATHER, SWAP = range(1, 5)
NUM_DRAWS = 7  # 0, 5 and 6 are shifts


@njit(cache=True)
def apportion_units(fractions: Array, units: int, row: Array) -> None:
    """Writes to `row` whole units in proportion to fractions, by the largest remainder method."""
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
    """Gives a run an axis and shares; blocks that do not have or may not use the axis are unchanged.

    letter: of the axis, as a number; fractions: of the units, by part; allowed: a mask [block, axis].
    """
    for b in range(lo, hi):
        for a in range(m.axis_count[b]):
            if m.letter[b, a] == letter and m.units[b, a] > 1 and allowed[b, a]:
                axis[b] = a
                apportion_units(fractions, m.units[b, a], x[b])


@njit(cache=True)
def _shift(
    m: MixedModel, axis: Array, x: Array, lo: int, hi: int, p: int, q: int, fraction: float
) -> float:
    """Moves a fraction of every block of a run, at least one unit, from p to q; returns the work moved."""
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
    """Returns a fraction of the units to shift: often 0, which shifts one unit, and seldom a large one."""
    return 0.0 if np.random.random() < 0.5 else np.random.random() ** 2


@njit(cache=True)
def _random_active_part(row: Array) -> int:
    """Returns a random part that has units."""
    at = np.random.randint(active_parts(row))
    for p in range(len(row)):
        if row[p] > 0:
            if at == 0:
                return p
            at -= 1
    return 0


@njit(cache=True)
def propose_move(m: MixedModel, axis: Array, x: Array, lo: int, hi: int, allowed: Array) -> None:
    """Changes a run by a random move that is not an exchange; allowed: a mask [block, axis]."""
    kind = np.random.randint(NUM_DRAWS)
    p, q = _random_active_part(x[lo]), np.random.randint(x.shape[1])
    if kind == COPY:
        neighbour = lo - 1 if np.random.random() < 0.5 else hi
        if 0 <= neighbour < len(x):
            letter = m.letter[neighbour, axis[neighbour]]
            _change_axis(
                m,
                axis,
                x,
                lo,
                hi,
                letter,
                x[neighbour] / m.units[neighbour, axis[neighbour]],
                allowed,
            )
    elif kind == CHANGE_AXIS:
        letter = m.letter[lo, np.random.randint(m.axis_count[lo])]
        for b in range(lo, hi):
            _change_axis(m, axis, x, b, b + 1, letter, x[b] / m.units[b, axis[b]], allowed)
    elif kind == GATHER:
        from_all = np.random.random() < 0.3
        for b in range(lo, hi):
            for giver in range(x.shape[1]):
                if giver != q and (from_all or giver == p):
                    x[b, q] += x[b, giver]
                    x[b, giver] = 0
    elif kind == SWAP:
        for b in range(lo, hi):
            x[b, p], x[b, q] = x[b, q], x[b, p]
    else:
        _shift(m, axis, x, lo, hi, p, q, _random_fraction())


@njit(cache=True)
def propose_exchange(m: MixedModel, axis: Array, x: Array, lo: int, hi: int) -> tuple[int, int]:
    """Shifts units of a run, and about as much work of another run back.

    Returns the other run; (0, 0) if the two would overlap, and then nothing changes.
    """
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
    """Returns a random run of blocks, often a single one: the first block and the one after the last."""
    lo = np.random.randint(blocks)
    hi = lo + 1
    if np.random.random() < 0.6:
        hi = min(blocks, lo + 1 + int(np.random.random() ** 2 * blocks))
    return lo, hi


@njit(cache=True)
def seed_generator(seed: int) -> None:
    """Seeds the random numbers of JIT-compiled functions, which have a generator of their own."""
    np.random.seed(seed)
