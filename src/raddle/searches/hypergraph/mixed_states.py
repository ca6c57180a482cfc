"""Defines the states of the search over mixed partitions: starts, conversion from and to tiles, work.

A *mixed* partition splits each layer along an axis of its own: samples, filters, input channels, height or
width. A *block* is a layer with the operators that follow it; a *part* is a device's share; the *units* of
an axis are samples, filters, ... (mixed_blocks.py). A *state* says, for each block, its axis and how many
units each part has.

The basic starts are:

    sample     every block is split by sample, as in data parallelism
    filter     every block is split by filter
    stages     blocks in order fill one part after the other, each to its share of the work

Any other plan whose layers are each split along one axis can be a start, too.
"""

# b: block; a: axis of a block, by its position in MixedBlock.axes; m: the cost model, with the work and
# units of each block (mixed_model.py); d: a dimension of an operator; apportion_units: writes whole units,
# in proportion to fractions, into a row

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


class MixedState(NamedTuple):
    """A mixed partition as the search sees it."""

    axis: Array  # by block: the position of its axis in MixedBlock.axes
    x: Array  # [block, part] units (samples, filters, ...) of the block's axis

    def copy(self) -> MixedState:
        """Returns a state with arrays of its own."""
        return MixedState(self.axis.copy(), self.x.copy())


def tiles_of(blocks: MixedBlocks, m: MixedModel, state: MixedState) -> Tiles:
    """Returns the tiles of a state."""
    return blocks.tiles(block_ranges(blocks, m, state.axis, state.x), state.x.shape[1])


def basic_starts(blocks: MixedBlocks, m: MixedModel, shares: Array) -> dict[str, MixedState]:
    """Returns the basic starts by name; shares: of the work, by part, with sum 1."""
    block_fractions = np.tile(shares, (len(blocks.blocks), 1))
    return {
        "sample": _split_all(blocks, m, "n", block_fractions),
        "filter": _split_all(blocks, m, "c", block_fractions),
        "stages": _split_all(blocks, m, "n", _stage_fractions(m, shares)),
    }


def _split_all(blocks: MixedBlocks, m: MixedModel, letter: str, fractions: Array) -> MixedState:
    """Splits every block along the axis `letter`, or along its first axis if it lacks that one.

    fractions: [block, part].
    """
    axis, x = np.zeros(len(fractions), np.int64), np.zeros(fractions.shape, np.int64)
    for b, block in enumerate(blocks.blocks):
        splittable = [a for a, units in enumerate(block.units) if units > 1]
        wanted = [a for a in splittable if block.axes[a] == letter]
        axis[b] = (wanted or splittable or [0])[0]
        apportion_units(fractions[b], int(m.units[b, axis[b]]), x[b])
    return MixedState(axis, x)


def _stage_fractions(m: MixedModel, shares: Array) -> Array:
    """Returns fractions [block, part] with which the blocks, in order, fill one part after the other."""
    work_ends = np.concatenate([[0.0], np.cumsum(m.work)]) / m.work.sum()
    fractions = np.zeros((len(m.work), len(shares)))
    share_ends = np.concatenate([[0.0], np.cumsum(shares)])
    for b in range(len(m.work)):
        lo, hi = work_ends[b], work_ends[b + 1]
        if hi - lo < 1e-9:  # no work: in the part where the block before it ends
            fractions[b, min(len(shares) - 1, int(np.searchsorted(share_ends[1:], lo)))] = 1.0
            continue
        overlap = np.minimum(hi, share_ends[1:]) - np.maximum(lo, share_ends[:-1])
        fractions[b] = np.maximum(0.0, overlap) / (hi - lo)
    fractions /= fractions.sum(axis=1, keepdims=True)
    return fractions


def state_of_tiles(
    blocks: MixedBlocks, tiles: Mapping[str, Tiling], parts: int
) -> MixedState | None:
    """Returns the state nearest to the tiles of a plan.

    None if the first operator of a block has irregular tiles, is split along two dimensions or along one
    that is no axis of the block, or is replicated although the block has a layer.
    """
    axis, rows = [], []
    for block in blocks.blocks:
        block_row = _block_row(block, tiles, parts)
        if block_row is None:
            return None
        axis.append(block_row[0])
        rows.append(block_row[1])
    return MixedState(np.array(axis, np.int64), np.array(rows, np.int64))


def _block_row(
    block: MixedBlock, tiles: Mapping[str, Tiling], parts: int
) -> tuple[int, Array] | None:
    """Returns the axis and the units by part of one block, as its first operator is tiled.

    None if it has no such state (see state_of_tiles).
    """
    first_op = block.groups[0].members[0].op
    tiling = tiles[first_op.name]
    if not isinstance(tiling, Grid) or (tiling.copies > 1 and block.work):
        return None
    split_dims = [d for d, cuts in enumerate(tiling.cuts) if len(cuts) > 2]
    row, fractions = np.zeros(parts, np.int64), np.zeros(parts)
    letter = first_op.space.dims[split_dims[0]].name if split_dims else block.axes[0]
    if len(split_dims) > 1 or letter not in block.axes:
        return None
    a = block.axes.index(letter)
    for tile in tiling.tiles[:: tiling.copies]:  # one copy of each tile
        d = split_dims[0] if split_dims else 0
        size = first_op.space.dims[d].size if split_dims else 1
        fractions[tile.device] += tile.box.shape[d] / size if split_dims else 1.0
    apportion_units(fractions, block.units[a], row)
    return a, row


def normalize_state(blocks: MixedBlocks, state: MixedState, shares: Array) -> MixedState:
    """Returns an equivalent state in a standard form.

    A block on one part gets its first axis. Parts are renumbered by the mean position of their blocks, so
    that parts with the same blocks get neighbouring numbers, and often share a node. They keep their
    numbers if the shares differ, or if a block is split along a contiguous axis (a part has one range of
    it, in the order of parts: mixed_layouts.py).
    """
    result = state.copy()
    can_reorder = float(shares.max()) == float(shares.min())
    for b, block in enumerate(blocks.blocks):
        active_parts = np.flatnonzero(result.x[b])
        if len(active_parts) == 1:
            result.axis[b] = 0
            result.x[b, :] = 0
            result.x[b, active_parts[0]] = block.units[0]
        elif block.contiguous[result.axis[b]]:
            can_reorder = False
    if not can_reorder:
        return result
    units = result.x.sum(axis=1, keepdims=True)
    # For each part: the mean number of the blocks that it has units of, weighted by its fractions of them
    mean_block = (np.arange(len(units))[:, None] * result.x / units).sum(axis=0)
    mean_block /= np.maximum(1e-12, (result.x / units).sum(axis=0))
    order = np.argsort(np.where(result.x.any(axis=0), mean_block, len(units)), kind="stable")
    return MixedState(result.axis, np.ascontiguousarray(result.x[:, order]))


def part_work(m: MixedModel, state: MixedState) -> Sequence[float]:
    """Returns the FLOPs of the layers in a forward, by part."""
    units = np.take_along_axis(m.units, state.axis[:, None], axis=1)
    work: Array = (m.work[:, None] * state.x / units).sum(axis=0)
    return [float(w) for w in work]
