"""The bytes of a mixed partition, compiled: an axis by block, and x[b, p], the units of each part.

The formulas are those of mixedcosts.py. A value that several blocks read goes to a part once: of needs
along the same dimension the largest counts, and needs along different ones overlap as products do.
"""

# v: value; r: reader, a block; b: block; a: axis; p: part; d: dimension

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.searches.hypergraph.mixed_model import ALL, CUT, EVEN, Array, Model

DIMENSIONS = 8  # of a value, at most
ALIKE, EVERYTHING = DIMENSIONS, DIMENSIONS + 1  # columns of the scratch space after the dimensions


def volume(m: Model, axis: Array, x: Array) -> float:
    """Bytes that cross parts in a step."""
    room = scratch(x.shape[1])
    values = sum(value_bytes(m, axis, x, v, room) for v in range(len(m.nbytes)))
    return float(values + sum(weight_bytes(m, axis, x, b) for b in range(len(x))))


def scratch(parts: int) -> Array:
    """By part, what it needs of a value: along each dimension, beyond what it holds, all of it."""
    return np.zeros((parts, DIMENSIONS + 2))


@njit(cache=True)
def weight_bytes(m: Model, axis: Array, x: Array, b: int) -> float:
    return 2.0 * (active_parts(x[b]) - 1) * float(m.weights[b, axis[b]])


@njit(cache=True)
def active_parts(row: Array) -> int:
    count = 0
    for units in row:
        if units > 0:
            count += 1
    return count


@njit(cache=True)
def _lone(row: Array) -> int:
    for p in range(len(row)):
        if row[p] > 0:
            return p
    return 0


@njit(cache=True)
def _fraction(kind: int, own: int, p: int, units: int, active: int, lone: int) -> float:
    """How much of a value a part holds, or needs."""
    if own == 0:
        return 0.0
    if kind == CUT:
        return own / units
    if kind == EVEN:
        return 1.0 / active
    if kind == ALL:
        return 1.0
    return 1.0 if p == lone else 0.0


@njit(cache=True)
def value_bytes(m: Model, axis: Array, x: Array, v: int, room: Array) -> float:
    """Bytes of a value, and of its gradient, that cross parts; `room` is scratch space, see `scratch`."""
    source = m.source[v]
    a, own = axis[source], x[source]
    kind, _, partial, _ = m.hold[v, a]
    units, active, lone = m.units[source, a], active_parts(own), _lone(own)
    total = 0.0
    if partial and active > 1:
        # Small ones are merged wherever they are needed, the others in slices.
        times = active - 1 if m.merged[v] > 0 else active * (active - 1)
        total = times * abs(float(m.merged[v]))
        if m.merged[v] < 0:
            return total
    room[:] = 0.0
    for r in range(m.reader_at[v], m.reader_at[v + 1]):
        _add_needs(m, axis, x, v, r, room)
    for p in range(len(own)):
        lacking = 1.0 - _fraction(kind, own[p], p, units, active, lone)
        if room[p, EVERYTHING] > 0.0:
            total += m.nbytes[v] * lacking
        else:
            outside = 1.0
            for d in range(DIMENSIONS):
                outside *= 1.0 - room[p, d]
            alike = room[p, ALIKE]
            total += m.nbytes[v] * (alike + (lacking - alike) * (1.0 - outside))
    return total


@njit(cache=True)
def _add_needs(m: Model, axis: Array, x: Array, v: int, r: int, room: Array) -> None:
    """What the parts of one reader need of a value: of several readers, they need the most."""
    source, b = m.source[v], m.reader[r]
    own, read = x[source], x[b]
    kind, dim, _, table = m.hold[v, axis[source]]
    kind_r, dim_r, _, table_r = m.need[r, axis[b]]
    units, active, lone = m.units[source, axis[source]], active_parts(own), _lone(own)
    units_r, active_r, lone_r = m.units[b, axis[b]], active_parts(read), _lone(read)
    cut = kind_r in (CUT, EVEN)
    begin = begin_r = 0
    for p in range(len(own)):
        end, end_r = begin + own[p], begin_r + read[p]
        if read[p] > 0:
            t = _fraction(kind_r, read[p], p, units_r, active_r, lone_r)
            lo = hi = 0.0
            if table_r >= 0:
                lo, hi = m.low[table_r + begin_r], m.high[table_r + end_r]
                t = hi - lo
            if not cut:
                room[p, EVERYTHING] = max(room[p, EVERYTHING], t)
            elif dim_r != dim:
                room[p, dim_r] = max(room[p, dim_r], t)
            else:
                inside = _fraction(kind, own[p], p, units, active, lone)
                if table >= 0 and table_r >= 0 and own[p] > 0:
                    inside = min(hi, m.high[table + end]) - max(lo, m.low[table + begin])
                room[p, ALIKE] = max(room[p, ALIKE], t - max(0.0, inside))
        begin, begin_r = end, end_r
