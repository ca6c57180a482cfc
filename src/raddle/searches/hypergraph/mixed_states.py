"""States of a search over mixed partitions, and where it starts.

    sample     every block by sample, as data parallelism has it
    filter     every block by filter
    stages     blocks in order, each by sample, a part after the other filled with its share of the work

Any other plan whose layers are split by one axis is a start, too.
"""

# b: block; a: axis; p: part

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from raddle.plans.tiling import Grid, Tiling
from raddle.searches.grids import Tiles
from raddle.searches.hypergraph.mixed_blocks import MixedBlock, MixedBlocks
from raddle.searches.hypergraph.mixed_layouts import block_ranges
from raddle.searches.hypergraph.mixed_model import Array, MixedModel
from raddle.searches.hypergraph.mixed_moves import apportion_units


class State(NamedTuple):
    """By block, the axis; by block and part, units of it."""

    axis: Array
    x: Array

    def copy(self) -> State:
        return State(self.axis.copy(), self.x.copy())


def tiles_of(blocks: MixedBlocks, m: MixedModel, state: State) -> Tiles:
    """The plan of a state."""
    return blocks.tiles(block_ranges(blocks, m, state.axis, state.x), state.x.shape[1])


def first_starts(blocks: MixedBlocks, m: MixedModel, shares: Array) -> dict[str, State]:
    """What a search knows to begin with; `shares` are those of the work, by part."""
    even = np.tile(shares, (len(blocks.blocks), 1))
    return {
        "sample": _shared(blocks, m, "n", even),
        "filter": _shared(blocks, m, "c", even),
        "stages": _shared(blocks, m, "n", _filled(m, shares)),
    }


def _shared(blocks: MixedBlocks, m: MixedModel, letter: str, fractions: Array) -> State:
    """Every block by an axis, or by its first one where it lacks it."""
    axis, x = np.zeros(len(fractions), np.int64), np.zeros(fractions.shape, np.int64)
    for b, block in enumerate(blocks.blocks):
        able = [a for a, units in enumerate(block.units) if units > 1]
        wanted = [a for a in able if block.axes[a] == letter]
        axis[b] = (wanted or able or [0])[0]
        apportion_units(fractions[b], int(m.units[b, axis[b]]), x[b])
    return State(axis, x)


def _filled(m: MixedModel, shares: Array) -> Array:
    """Fractions of blocks that fill one part after the other."""
    ends = np.concatenate([[0.0], np.cumsum(m.work)]) / m.work.sum()
    found = np.zeros((len(m.work), len(shares)))
    reached = np.concatenate([[0.0], np.cumsum(shares)])
    for b in range(len(m.work)):
        lo, hi = ends[b], ends[b + 1]
        if hi - lo < 1e-9:  # no work: where the one before it ends
            found[b, min(len(shares) - 1, int(np.searchsorted(reached[1:], lo)))] = 1.0
            continue
        own = np.minimum(hi, reached[1:]) - np.maximum(lo, reached[:-1])
        found[b] = np.maximum(0.0, own) / (hi - lo)
    found /= found.sum(axis=1, keepdims=True)
    return found


def state_of(blocks: MixedBlocks, tiles: Mapping[str, Tiling], parts: int) -> State | None:
    """The state that is nearest to a plan's tiles; None where a layer is split by two axes, or copied."""
    axis, rows = [], []
    for block in blocks.blocks:
        found = _row(block, tiles, parts)
        if found is None:
            return None
        axis.append(found[0])
        rows.append(found[1])
    return State(np.array(axis, np.int64), np.array(rows, np.int64))


def _row(block: MixedBlock, tiles: Mapping[str, Tiling], parts: int) -> tuple[int, Array] | None:
    anchor = block.groups[0].members[0].op
    tiling = tiles[anchor.name]
    if not isinstance(tiling, Grid) or (tiling.copies > 1 and block.work):
        return None
    split = [d for d, cuts in enumerate(tiling.cuts) if len(cuts) > 2]
    row, fractions = np.zeros(parts, np.int64), np.zeros(parts)
    letter = anchor.space.dims[split[0]].name if split else block.axes[0]
    if len(split) > 1 or letter not in block.axes:
        return None
    a = block.axes.index(letter)
    for tile in tiling.tiles[:: tiling.copies]:
        d = split[0] if split else 0
        size = anchor.space.dims[d].size if split else 1
        fractions[tile.device] += tile.box.shape[d] / size if split else 1.0
    apportion_units(fractions, block.units[a], row)
    return a, row


def settled(blocks: MixedBlocks, state: State, shares: Array) -> State:
    """The same, readable: a block on one part has its first axis, and parts are in the order of their work.

    So parts that work on the same blocks are neighbours, and share a node. Parts keep their numbers where
    their order is that of ranges, or where they are not alike.
    """
    found = state.copy()
    ordered = float(shares.max()) == float(shares.min())
    for b, block in enumerate(blocks.blocks):
        active = np.flatnonzero(found.x[b])
        if len(active) == 1:
            found.axis[b] = 0
            found.x[b, :] = 0
            found.x[b, active[0]] = block.units[0]
        elif block.contiguous[found.axis[b]]:
            ordered = False
    if not ordered:
        return found
    units = found.x.sum(axis=1, keepdims=True)
    middle = (np.arange(len(units))[:, None] * found.x / units).sum(axis=0)
    middle /= np.maximum(1e-12, (found.x / units).sum(axis=0))
    order = np.argsort(np.where(found.x.any(axis=0), middle, len(units)), kind="stable")
    return State(found.axis, np.ascontiguousarray(found.x[:, order]))


def part_work(m: MixedModel, state: State) -> Sequence[float]:
    """By part, operations of the layers in a forward."""
    units = np.take_along_axis(m.units, state.axis[:, None], axis=1)
    found: Array = (m.work[:, None] * state.x / units).sum(axis=0)
    return [float(w) for w in found]
