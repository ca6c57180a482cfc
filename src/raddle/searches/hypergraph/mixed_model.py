"""Models a mixed partition by an axis for each block and the number of units of each part.

A *mixed* partition splits each layer along an axis of its own: samples, filters, input channels, height or
width. A *block* is a layer with the operators that follow it; a *part* is a device's share; the *units* of
an axis are samples, filters, ... (mixed_blocks.py).

A part *holds* a fraction s of a value along one dimension of the value, and *needs* a fraction t of it. It
receives what it needs and does not hold, and sends the gradient back. With fractions of the value's bytes:

    needed along the same dimension   max(0, t - s): ranges lie inside each other (mixed_layouts.py)
    needed along another dimension    t (1 - s)
    all of it needed                  1 - s, if the part has any units
    partial results of P parts        the whole value, P - 1 times, to sum them

Weights that P parts hold are synchronised: 2 (P - 1) times their bytes. How an operator holds and needs
values is found out by splitting its block in two, so this file has no rule for single operators.
"""

# v: value; b: block; a: axis of a block, by its position in MixedBlock.axes

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from raddle.graph.gradients import active_values
from raddle.graph.graph import Op
from raddle.plans.tiling import Grid
from raddle.program.merges import is_local_statistics, longest_dim
from raddle.program.replicated_loss import SMALL_RESULT
from raddle.searches.configurations import cut_points
from raddle.searches.hypergraph.mixed_blocks import MixedBlock, MixedBlocks, UnitRun, block_tiles

Array = np.ndarray

# Kinds of splits among the parts that have units. ALL: each has all of it. PROPORTIONAL: ranges in
# proportion to their units. EVEN: equal ranges. FIRST_ONLY: the first of them has all of it.
ALL, PROPORTIONAL, EVEN, FIRST_ONLY = 0, 1, 2, 3


class Split(NamedTuple):
    """The way in which an operator or a value is divided when its block is split along an axis."""

    kind: int  # ALL, PROPORTIONAL, EVEN or FIRST_ONLY
    dim: int = -1  # the dimension that is divided
    partial: bool = False  # whether each part has a partial result, which has to be summed
    table: int = -1  # index of its first entry in MixedModel.low and high; -1: not needed


class MixedModel(NamedTuple):
    """A graph's blocks as arrays, for numba.

    The readers of value v are the entries reader_start[v] to reader_start[v + 1] of reader and need; the
    values of block b are touched_start[b] to touched_start[b + 1] of touched.
    """

    axis_count: Array  # by block
    letter: Array  # [block, axis] the letter of the axis as a number
    units: Array  # [block, axis]
    work: Array  # by block: FLOPs of a forward
    replicated_bytes: Array  # [block, axis] bytes of weights that every part with units holds
    nbytes: Array  # by value, with its gradient
    # For each value: bytes of one partial result; negative if it is so small that every part sums it itself
    merge_bytes: Array
    source: Array  # by value: the block that computes it
    hold: Array  # [value, axis of the source] the fields of the value's Split
    reader_start: Array
    reader: Array  # the block of each reader
    need: Array  # [reader, axis of the reader] the fields of the Split of what it needs
    # Ranges of dimensions that must be contiguous, as fractions. If a part has the units u to w - 1, its
    # range begins at low[table + u] and ends at high[table + w].
    low: Array
    high: Array
    touched_start: Array
    touched: Array  # the values that each block computes or reads


def build_mixed_model(blocks: MixedBlocks) -> MixedModel:
    """Builds the arrays of a graph's blocks."""
    return _MixedModelBuilder(blocks).build()


class _MixedModelBuilder:
    """Finds how operators and values are divided along every axis of their block."""

    def __init__(self, blocks: MixedBlocks) -> None:
        self.blocks, self.graph = blocks, blocks.graph
        self.active = active_values(blocks.graph)  # the values that have a gradient
        self.max_axes = max(len(b.axes) for b in blocks.blocks)
        self.low: list[float] = []
        self.high: list[float] = []
        # [block][axis]: by name of the operator, how it is divided
        self.splits = [
            [_split_operators(block, a) for a in range(len(block.axes))] for block in blocks.blocks
        ]
        # For each value: the operators that read it, and as which operand
        self.readers: dict[str, list[tuple[Op, int]]] = {}
        for op in self.graph.ops:
            for operand, name in enumerate(op.inputs):
                self.readers.setdefault(name, []).append((op, operand))

    def build(self) -> MixedModel:
        """Returns the model; it lists the values that blocks read from each other, or sum."""
        block_of, blocks = self.blocks.block_of, self.blocks.blocks
        values, sources, holds, needs = [], [], [], []
        for op in self.graph.ops:
            for output, name in enumerate(op.outputs if op.name in block_of else ()):
                hold = self._per_axis(
                    block_of[op.name],
                    lambda b, a: self._output_split(op, output, b, a),  # noqa: B023
                )
                readers = self._reading_blocks(name, block_of[op.name], hold)
                if readers or any(split.partial for split in hold):
                    values.append(name)
                    sources.append(block_of[op.name])
                    holds.append(hold)
                    needs.append(readers)
        # Letter of an axis -> its number in MixedModel.letter
        letters = {x: i for i, x in enumerate(sorted({x for b in blocks for x in b.axes}))}
        sizes = [self.graph.values[name].nbytes for name in values]  # bytes, without the gradient
        # 2 if the value has a gradient, which is sent back
        directions = [1 + (name in self.active) for name in values]
        touched: list[list[int]] = [[] for _ in blocks]
        for v, source in enumerate(sources):
            for b in dict.fromkeys([source, *(b for b, _ in needs[v])]):
                touched[b].append(v)
        flat_needs = [entry for entries in needs for entry in entries]
        return MixedModel(
            np.array([len(b.axes) for b in blocks]),
            self._pad_rows([[letters[x] for x in b.axes] for b in blocks]),
            self._pad_rows([b.units for b in blocks]),
            np.array([b.work for b in blocks], np.float64),
            self._pad_rows(self._replicated_weights()).astype(np.float64),
            np.array([x * y for x, y in zip(sizes, directions, strict=True)], np.float64),
            # Up to SMALL_RESULT bytes, every part sums for itself.
            np.array(
                [
                    x * y * (1 if x > SMALL_RESULT else -1)
                    for x, y in zip(sizes, directions, strict=True)
                ]
            ),
            np.array(sources, np.int64),
            self._pad_splits(holds),
            _list_starts(needs),
            np.array([b for b, _ in flat_needs], np.int64),
            self._pad_splits([splits for _, splits in flat_needs]),
            np.array(self.low or [0.0]),
            np.array(self.high or [0.0]),
            _list_starts(touched),
            np.array([v for block_values in touched for v in block_values], np.int64),
        )

    def _per_axis(self, b: int, split_of: Any) -> list[Split]:
        """Returns split_of(b, a) for each axis a of block b."""
        return [split_of(b, a) for a in range(len(self.blocks.blocks[b].axes))]

    def _pad_rows(self, rows: Sequence[Sequence[int]]) -> Array:
        """Returns rows of different lengths (one entry per axis) as one array, filled up with zeros."""
        table = np.zeros((len(rows), self.max_axes), np.int64)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        return table

    def _pad_splits(self, rows: Sequence[Sequence[Split]]) -> Array:
        """Returns rows of splits (one per axis) as an array [row, axis, field of Split]."""
        table = np.zeros((len(rows), self.max_axes, 4), np.int64)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        return table

    # -- what parts hold and need ----------------------------------------------------------------

    def _output_split(self, op: Op, output: int, b: int, a: int) -> Split:
        """Returns how the parts hold an output of an operator if block b is split along axis a."""
        split = self.splits[b][a][op.name]
        if split.kind not in (PROPORTIONAL, EVEN):
            return split
        dims = op.space.outputs[output]
        if split.dim not in dims:
            if is_local_statistics(op, "local"):  # the model assumes bn: local: no sums
                return Split(ALL)
            # A summed dimension is split. The parts add up the partial results: each part adds up, and then
            # holds, an equal range of the longest dimension (of small results all of it: merge_bytes).
            shape = [op.space.dims[d].size for d in dims]
            return Split(EVEN, longest_dim(shape), True) if shape else Split(ALL, -1, True)
        position = dims.index(split.dim)
        if split.kind == EVEN or not self.blocks.blocks[b].contiguous[a]:
            return Split(split.kind, position)
        unit_starts = self._unit_starts(op, split.dim, b, a)
        size = op.space.dims[split.dim].size
        return Split(
            PROPORTIONAL,
            position,
            table=self._add_table([u / size for u in unit_starts], [u / size for u in unit_starts]),
        )

    def _operand_split(self, op: Op, operand: int, b: int, a: int) -> Split:
        """Returns what the parts need of an operand if block b is split along axis a."""
        split = self.splits[b][a][op.name]
        if split.kind not in (PROPORTIONAL, EVEN):
            return split
        # access.indices: one for each dimension of the operand; index.range(box): the positions of that
        # dimension that a box of the operator reads; term.dim: a dimension of the operator in the index
        access, units = op.space.operands[operand], self.blocks.blocks[b].units[a]
        box = [(0, dim.size) for dim in op.space.dims]
        unit_starts = self._unit_starts(op, split.dim, b, a)
        # What the first quarter of the units reads shows along which index the operand is cut.
        box[split.dim] = (0, max(1, unit_starts[max(1, units // 4)]))
        ranges = [index.range(box) for index in access.indices]
        cut_indices = [
            at
            for at, (index, (lo, hi)) in enumerate(zip(access.indices, ranges, strict=True))
            if hi - lo < index.extent and any(term.dim == split.dim for term in index.terms)
        ]
        if len(cut_indices) != 1:
            return Split(ALL)
        if split.kind == EVEN or not self.blocks.blocks[b].contiguous[a]:
            return Split(split.kind, cut_indices[0])
        index, ranges = access.indices[cut_indices[0]], []
        for lo, hi in pairwise(unit_starts):
            box[split.dim] = (lo, max(hi, lo + 1))
            ranges.append(index.range(box))
        low = [lo / index.extent for lo, _ in ranges] + [1.0]
        high = [0.0] + [hi / index.extent for _, hi in ranges]
        return Split(PROPORTIONAL, cut_indices[0], table=self._add_table(low, high))

    def _unit_starts(self, op: Op, dim: int, b: int, a: int) -> list[int]:
        """Returns where each unit of block b begins in a dimension of an operator."""
        size, units = op.space.dims[dim].size, self.blocks.blocks[b].units[a]
        return [round(size * u / units) for u in range(units + 1)]

    def _add_table(self, low: Sequence[float], high: Sequence[float]) -> int:
        """Appends ranges to the tables; returns the index of the first entry."""
        at = len(self.low)
        self.low += low
        self.high += high
        return at

    def _reading_blocks(
        self, name: str, source: int, hold: list[Split]
    ) -> list[tuple[int, list[Split]]]:
        """Returns the blocks that read a value, and what they need along each axis.

        The block that computes the value is left out if its parts hold all that they need.
        """
        needs_by_reader: dict[tuple[int, tuple[tuple[int, int], ...]], list[Split]] = {}
        for op, operand in self.readers.get(name, ()):
            if op.name not in self.blocks.block_of:
                continue
            b = self.blocks.block_of[op.name]
            needs = self._per_axis(b, lambda b, a: self._operand_split(op, operand, b, a))  # noqa: B023
            if b == source and all(map(self._is_local, hold, needs)):
                continue
            needs_by_reader.setdefault((b, tuple((s.kind, s.dim) for s in needs)), needs)
        return [(b, needs) for (b, _), needs in needs_by_reader.items()]

    def _is_local(self, hold: Split, need: Split) -> bool:
        """Whether each part holds what it needs, if it has the same units for both."""
        if hold.kind == FIRST_ONLY or hold.kind == ALL:
            return hold.kind == need.kind or (hold.kind == ALL and not hold.partial)
        if (hold.kind, hold.dim) != (need.kind, need.dim):
            return False
        return need.table < 0 or self._same_table(hold.table, need.table)

    def _same_table(self, one: int, other: int) -> bool:
        """Whether two tables have equal ranges; one, other: the index of the first entry of each."""
        # end: where the table ends (low is 1), or where low no longer rises; later entries are not compared
        end = one + 1
        while self.low[end] > self.low[end - 1] and self.low[end] < 1.0:
            end += 1
        count = end - one + 1
        return (
            self.low[one : one + count] == self.low[other : other + count]
            and self.high[one : one + count] == self.high[other : other + count]
        )

    # -- parameters ------------------------------------------------------------------------------

    def _replicated_weights(self) -> list[list[int]]:
        """Returns, by block and axis, the bytes of parameters that every part of the block holds."""
        nbytes = [[0] * len(block.axes) for block in self.blocks.blocks]
        for value in self.graph.parameters:
            users = [
                (op, i)
                for op, i in self.readers.get(value.name, ())
                if op.name in self.blocks.block_of
            ]
            if value.name not in self.active or not users:
                continue
            b = self.blocks.block_of[users[0][0].name]
            for a in range(len(nbytes[b])):
                if any(self._reads_whole(op, operand, b, a) for op, operand in users):
                    nbytes[b][a] += value.nbytes
        return nbytes

    def _reads_whole(self, op: Op, operand: int, b: int, a: int) -> bool:
        """Whether every part reads the whole operand if block b is split along axis a."""
        split = self.splits[b][a][op.name]
        if split.kind not in (PROPORTIONAL, EVEN):
            return split.kind == ALL
        access = op.space.operands[operand]
        # Dimensions of the operator that the operand depends on. An operand that is added once, as a bias
        # is, is read by one part only if a summed dimension is split.
        touched = {term.dim for index in access.indices for term in index.terms}
        return split.dim not in touched | set(op.space.reduced_dims if access.added_once else ())


def _list_starts(lists: Sequence[Sequence[object]]) -> Array:
    """Returns where each list begins when all stand one after the other, and where the last ends."""
    return np.concatenate([[0], np.cumsum([len(entries) for entries in lists])]).astype(np.int64)


def _split_operators(block: MixedBlock, a: int) -> dict[str, Split]:
    """Returns how each operator of a block is divided, found by a split into two unequal parts."""
    units = block.units[a]
    if units < 2:
        return {name: Split(ALL) for group in block.groups for name in group.ops}
    first = max(1, units // 4)
    # UnitRun: device and number of units
    runs = (UnitRun(0, first), UnitRun(1, units - first))
    splits = {}
    for name, tiling in block_tiles(block, block.axes[a], runs).items():
        assert isinstance(tiling, Grid)
        d = next((d for d, cuts in enumerate(tiling.cuts) if len(cuts) > 2), None)
        if d is None:
            splits[name] = Split(ALL if len(tiling.devices) > 1 else FIRST_ONLY)
        else:
            cuts = tiling.cuts[d]
            as_units = cuts == cut_points(cuts[-1], 2, [first, units - first])
            splits[name] = Split(PROPORTIONAL if as_units else EVEN, d)
    return splits
