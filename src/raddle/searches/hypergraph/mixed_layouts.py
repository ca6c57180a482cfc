"""Turns counts into ranges: which samples, filters, ... of each block a part has.

A *mixed* partition splits each layer along an axis of its own: samples, filters, input channels, height or
width. A *block* is a layer with the operators that follow it; a *part* is a device's share; the *units* of
an axis are samples, filters, ... (mixed_blocks.py). The search has only counts: x[b, p] is how many units
of block b part p has. The *owner* of a unit is the part that has it. The counts give the right volume
(bytes sent) only if the ranges of a block lie inside those of the block that it reads. So a block takes
over the owners of the units that it reads as far as its counts allow; only the remaining units change
parts:

    conv1  n  0 0 0 0 0 1 1 1 1 1 2 2        counts 5 5 2; the numbers are the parts of 12 samples
    conv2  n  0 0 0 0 0 1 1 1 1 1 0 0        counts 7 5 0: part 0 has two more samples, in a second range

Some axes are contiguous: a part has one range, in the order of the parts. These are axes with halos, and
samples if batch norm statistics are local (computed by each tile on its own).
"""

# b: block; a: axis, by its position in MixedBlock.axes; v: value; r: reader of a value; m: the model
# (mixed_model.py); m.touched: the values that each block computes or reads; m.source: by value, the block
# that computes it

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.searches.hypergraph.filter_layouts import keep_owners
from raddle.searches.hypergraph.mixed_blocks import MixedBlocks, UnitRun, UnitRuns
from raddle.searches.hypergraph.mixed_model import PROPORTIONAL, Array, MixedModel


def block_ranges(
    blocks: MixedBlocks, m: MixedModel, axis: Array, x: Array
) -> list[tuple[str, UnitRuns]]:
    """Returns the axis and the runs of each block; axis: by block; x: units [block, part]."""
    owners: list[Array] = []
    for b, block in enumerate(blocks.blocks):
        a = int(axis[b])
        ordered_owners = np.repeat(np.arange(x.shape[1]), x[b])
        source_owners = None if block.contiguous[a] else _source_owners(m, axis, b, owners)
        owners.append(ordered_owners if source_owners is None else keep_owners(source_owners, x[b]))
    return [
        (block.axes[axis[b]], _unit_runs(owners[b])) for b, block in enumerate(blocks.blocks)
    ]  # fmt: skip


def _source_owners(m: MixedModel, axis: Array, b: int, owners: Sequence[Array]) -> Array | None:
    """Returns the owners of the units of the largest value that block b reads along its own axis.

    They are scaled to the units of block b. None if the block reads no such value.
    """
    # m.hold and m.need have the fields of a Split (mixed_model.py): how the parts hold a value, and what
    # they need of it. The field `kind` says how the dimension `dim` is divided. PROPORTIONAL means ranges
    # in proportion to the parts' counts of units. If a value is held and needed in this way along the same
    # dimension, owners can be taken over.
    # best: the block that computes the largest such value so far
    best, most_bytes = None, 0.0
    for v in m.touched[m.touched_start[b] : m.touched_start[b + 1]]:
        source = int(m.source[v])
        kind, dim, _, _ = m.hold[v, axis[source]]
        if source >= b or kind != PROPORTIONAL or m.nbytes[v] <= most_bytes:
            continue
        for r in range(m.reader_start[v], m.reader_start[v + 1]):
            if m.reader[r] == b and tuple(m.need[r, axis[b], :2]) == (PROPORTIONAL, dim):
                best, most_bytes = source, float(m.nbytes[v])
    if best is None:
        return None
    units = int(m.units[b, axis[b]])
    return owners[best][np.arange(units) * len(owners[best]) // units]


def _unit_runs(owners: Array) -> UnitRuns:
    """Returns the runs of equal owners; owners: the part of each unit."""
    ends = [*np.flatnonzero(np.diff(owners)) + 1, len(owners)]
    starts = [0, *ends[:-1]]
    return tuple(
        UnitRun(int(owners[lo]), int(hi - lo)) for lo, hi in zip(starts, ends, strict=True)
    )
