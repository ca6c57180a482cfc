"""From shares to ranges: which samples, filters or rows a part has of each block.

Counts say how much travels only if ranges of neighbours lie inside of each other. So a block takes over the
places of the units that it reads, as far as its shares go, and only what is left over changes hands:

    conv1  n  0 0 0 0 0 1 1 1 1 1 2 2        shares 5 5 2
    conv2  n  0 0 0 0 0 1 1 1 1 1 0 0        shares 7 5 0: part 0 gets what part 2 had, in a second range

Where ranges have halos, and samples whose batch statistics are local, a part has one range, in the order of
the parts.
"""

# b: block; a: axis; p: part; v: value; u: unit

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.searches.hypergraph.layouts import keep_owners
from raddle.searches.hypergraph.mixed_blocks import Blocks, Run, Runs
from raddle.searches.hypergraph.mixed_model import CUT, Array, Model


def layouts(blocks: Blocks, m: Model, axis: Array, x: Array) -> list[tuple[str, Runs]]:
    """By block, its axis and ranges."""
    owners: list[Array] = []
    for b, block in enumerate(blocks.blocks):
        a = int(axis[b])
        order = np.repeat(np.arange(x.shape[1]), x[b])
        before = None if block.contiguous[a] else _read(m, axis, b, owners)
        owners.append(order if before is None else keep_owners(before, x[b]))
    return [
        (block.axes[axis[b]], _runs(owners[b])) for b, block in enumerate(blocks.blocks)
    ]  # fmt: skip


def _read(m: Model, axis: Array, b: int, owners: Sequence[Array]) -> Array | None:
    """Who has the units of the largest value that a block reads alike, in units of the block."""
    best, most = None, 0.0
    for v in m.touched[m.touched_at[b] : m.touched_at[b + 1]]:
        source = int(m.source[v])
        kind, dim, _, _ = m.hold[v, axis[source]]
        if source >= b or kind != CUT or m.nbytes[v] <= most:
            continue
        for r in range(m.reader_at[v], m.reader_at[v + 1]):
            if m.reader[r] == b and tuple(m.need[r, axis[b], :2]) == (CUT, dim):
                best, most = source, float(m.nbytes[v])
    if best is None:
        return None
    units = int(m.units[b, axis[b]])
    return owners[best][np.arange(units) * len(owners[best]) // units]


def _runs(owners: Array) -> Runs:
    ends = [*np.flatnonzero(np.diff(owners)) + 1, len(owners)]
    starts = [0, *ends[:-1]]
    return tuple(Run(int(owners[lo]), int(hi - lo)) for lo, hi in zip(starts, ends, strict=True))
