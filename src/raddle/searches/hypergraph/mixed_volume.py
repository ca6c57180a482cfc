"""Counts the bytes that a mixed partition sends in a step, by the formulas of mixed_model.py.

All functions that the annealing calls are JIT-compiled. A *mixed* partition splits each layer along an axis
of its own: samples, filters, input channels, height or width. A *block* is a layer with the operators that
follow it; a *part* is a device's share; the *units* of an axis are samples, filters, ... (mixed_blocks.py).
A partition is an axis for each block and the units x[b, p] of each part. A value that several blocks read
is sent to a part once. Of needs along the same dimension the largest counts. Needs along different
dimensions are treated as independent: the fractions that are not needed are multiplied.
"""

# v: value; r: reader of a value; b: block; a: axis, by its position in MixedBlock.axes; p: part; d: a
# dimension of a value; m: the model; m.hold, m.need: the fields (kind, dim, partial, table) of a Split: how
# the parts hold a value, or what they need of it; m.source: by value, the block that computes it

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.searches.hypergraph.mixed_model import ALL, EVEN, PROPORTIONAL, Array, MixedModel

DIMENSIONS = 8  # most dimensions of a value
SAME_DIMENSION, EVERYTHING = DIMENSIONS, DIMENSIONS + 1  # further columns of the scratch array


def volume(m: MixedModel, axis: Array, x: Array) -> float:
    """Returns the bytes that cross parts in a step."""
    scratch = allocate_scratch(x.shape[1])
    activation_bytes = sum(value_bytes(m, axis, x, v, scratch) for v in range(len(m.nbytes)))
    return float(activation_bytes + sum(weight_bytes(m, axis, x, b) for b in range(len(x))))


def allocate_scratch(parts: int) -> Array:
    """Returns an array for the fractions of one value that each part needs.

    Columns: needed along dimension d, if it differs from the one along which the value is held;
    [SAME_DIMENSION] needed along that one and not held; [EVERYTHING] above 0 if all of it is needed.
    """
    return np.zeros((parts, DIMENSIONS + 2))


@njit(cache=True)
def weight_bytes(m: MixedModel, axis: Array, x: Array, b: int) -> float:
    """Returns the bytes that synchronise the weights of block b: all-reduces among its parts."""
    return 2.0 * (active_parts(x[b]) - 1) * float(m.replicated_bytes[b, axis[b]])


@njit(cache=True)
def active_parts(row: Array) -> int:
    """Returns the number of parts that have units; row: units by part."""
    count = 0
    for units in row:
        if units > 0:
            count += 1
    return count


@njit(cache=True)
def _first_active_part(row: Array) -> int:
    """Returns the first part that has units, or 0."""
    for p in range(len(row)):
        if row[p] > 0:
            return p
    return 0


@njit(cache=True)
def _part_fraction(
    kind: int, part_units: int, p: int, units: int, active: int, first_part: int
) -> float:
    """Returns the fraction of a value that a part holds or needs.

    kind: of a Split (mixed_model.py); part_units: of part p; units: of all parts; active: number of parts
    with units; first_part: the first of these.
    """
    if part_units == 0:
        return 0.0
    if kind == PROPORTIONAL:
        return part_units / units
    if kind == EVEN:
        return 1.0 / active
    if kind == ALL:
        return 1.0
    return 1.0 if p == first_part else 0.0


@njit(cache=True)
def value_bytes(m: MixedModel, axis: Array, x: Array, v: int, scratch: Array) -> float:
    """Returns the bytes of value v and of its gradient that cross parts.

    axis: by block; x: units [block, part]; scratch: from allocate_scratch.
    """
    source = m.source[v]
    a, source_units = axis[source], x[source]
    kind, _, partial, _ = m.hold[v, a]
    units, active, first_part = (
        m.units[source, a],
        active_parts(source_units),
        _first_active_part(source_units),
    )
    total = 0.0
    if partial and active > 1:
        # Small partial results go to every part, which sums them. Of others, each part sums an equal range.
        times_sent = active - 1 if m.merge_bytes[v] > 0 else active * (active - 1)
        total = times_sent * abs(float(m.merge_bytes[v]))
        if m.merge_bytes[v] < 0:
            return total
    scratch[:] = 0.0
    for r in range(m.reader_start[v], m.reader_start[v + 1]):
        _add_needs(m, axis, x, v, r, scratch)
    for p in range(len(source_units)):
        missing = 1.0 - _part_fraction(kind, source_units[p], p, units, active, first_part)
        if scratch[p, EVERYTHING] > 0.0:
            total += m.nbytes[v] * missing
        else:
            unneeded = 1.0
            for d in range(DIMENSIONS):
                unneeded *= 1.0 - scratch[p, d]
            same_dimension = scratch[p, SAME_DIMENSION]
            total += m.nbytes[v] * (same_dimension + (missing - same_dimension) * (1.0 - unneeded))
    return total


@njit(cache=True)
def _add_needs(m: MixedModel, axis: Array, x: Array, v: int, r: int, scratch: Array) -> None:
    """Enters into scratch what the parts of reader r need of value v; the largest need counts."""
    source, b = m.source[v], m.reader[r]
    source_units, reader_units = x[source], x[b]
    kind, dim, _, table = m.hold[v, axis[source]]
    kind_r, dim_r, _, table_r = m.need[r, axis[b]]  # _r: of the reader
    units, active, first_part = (
        m.units[source, axis[source]],
        active_parts(source_units),
        _first_active_part(source_units),
    )
    units_r, active_r, first_part_r = (
        m.units[b, axis[b]],
        active_parts(reader_units),
        _first_active_part(reader_units),
    )
    is_split = kind_r in (PROPORTIONAL, EVEN)
    begin = begin_r = 0
    for p in range(len(source_units)):
        end, end_r = begin + source_units[p], begin_r + reader_units[p]
        if reader_units[p] > 0:
            needed = _part_fraction(kind_r, reader_units[p], p, units_r, active_r, first_part_r)
            lo = hi = 0.0
            # Contiguous axis (a part has one range): the range is looked up in m.low and m.high.
            if table_r >= 0:
                lo, hi = m.low[table_r + begin_r], m.high[table_r + end_r]
                needed = hi - lo
            if not is_split:
                scratch[p, EVERYTHING] = max(scratch[p, EVERYTHING], needed)
            elif dim_r != dim:
                scratch[p, dim_r] = max(scratch[p, dim_r], needed)
            else:
                # What the part needs and holds already
                inside = _part_fraction(kind, source_units[p], p, units, active, first_part)
                if table >= 0 and table_r >= 0 and source_units[p] > 0:
                    inside = min(hi, m.high[table + end]) - max(lo, m.low[table + begin])
                scratch[p, SAME_DIMENSION] = max(
                    scratch[p, SAME_DIMENSION], needed - max(0.0, inside)
                )
        begin, begin_r = end, end_r
