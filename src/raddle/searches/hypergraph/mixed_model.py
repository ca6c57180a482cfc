"""The compressed model of a mixed partition: by block, an axis and how many of its units each part has.

A part *holds* a fraction s of a value along one of the value's dimensions, and *needs* a fraction t of it
along the same dimension, along another one, or all of it. What it lacks, it receives, and the gradient of
that comes back:

    alike     t - s, where that is more than none: ranges lie inside of each other (mixedlayouts.py)
    across    t (1 - s)
    all       1 - s, if it has any units
    partial   sums of P parts: all of it, P - 1 times

Weights that P parts hold are synchronised: 2 (P - 1) times their bytes. How an operator holds and reads is
found by splitting its block in two, so this file knows no operator by name.
"""

# v: value; r: reader of a value, a block; b: block; a: axis of a block; p: part

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
from raddle.searches.hypergraph.mixed_blocks import Block, Blocks, Run, block_tiles

Array = np.ndarray

ALL, CUT, EVEN, LONE = 0, 1, 2, 3  # every part with units, by its units, equally, on the first one


class Split(NamedTuple):
    """How an operator, or a value, is divided when its block is split by an axis."""

    kind: int
    dim: int = -1
    partial: bool = False
    table: int = -1  # where in the tables its ranges begin; none where units are interchangeable


class Model(NamedTuple):
    """A graph's blocks as arrays; `*_at` are where the entries of a value, or a block, begin."""

    axes: Array  # by block, how many
    letter: Array  # by block and axis, a number: the same for the same letter
    units: Array  # by block and axis
    work: Array  # by block
    weights: Array  # by block and axis: bytes that all parts with units hold
    nbytes: Array  # by value, forward and backward
    merged: Array  # by value: what a part of a partial result costs, in bytes
    source: Array  # by value, the block that makes it
    hold: Array  # by value, axis: kind, dimension, partial, table
    reader_at: Array
    reader: Array  # block
    need: Array  # by reader, axis: kind, dimension, partial, table
    low: Array  # tables, by unit: where the range of a part that begins there begins, as a fraction
    high: Array  # and where the range of a part that ends there ends
    touched_at: Array
    touched: Array  # by block, the values that it makes or reads


def model(blocks: Blocks) -> Model:
    """The arrays of a graph's blocks."""
    return _Builder(blocks).build()


class _Builder:
    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.graph = blocks, blocks.graph
        self.active = active_values(blocks.graph)
        self.most = max(len(b.axes) for b in blocks.blocks)
        self.low: list[float] = []
        self.high: list[float] = []
        self.splits = [
            [_splits(block, a) for a in range(len(block.axes))] for block in blocks.blocks
        ]
        self.readers: dict[str, list[tuple[Op, int]]] = {}
        for op in self.graph.ops:
            for operand, name in enumerate(op.inputs):
                self.readers.setdefault(name, []).append((op, operand))

    def build(self) -> Model:
        of, blocks = self.blocks.of, self.blocks.blocks
        values, sources, holds, needs = [], [], [], []
        for op in self.graph.ops:
            for k, name in enumerate(op.outputs if op.name in of else ()):
                hold = self._per_axis(of[op.name], lambda b, a: self._held(op, k, b, a))  # noqa: B023
                read = self._read(name, of[op.name], hold)
                if read or any(split.partial for split in hold):
                    values.append(name)
                    sources.append(of[op.name])
                    holds.append(hold)
                    needs.append(read)
        letters = {x: i for i, x in enumerate(sorted({x for b in blocks for x in b.axes}))}
        sizes = [self.graph.values[name].nbytes for name in values]
        both = [1 + (name in self.active) for name in values]
        touched: list[list[int]] = [[] for _ in blocks]
        for v, source in enumerate(sources):
            for b in dict.fromkeys([source, *(b for b, _ in needs[v])]):
                touched[b].append(v)
        flat = [entry for own in needs for entry in own]
        return Model(
            np.array([len(b.axes) for b in blocks]),
            self._table([[letters[x] for x in b.axes] for b in blocks]),
            self._table([b.units for b in blocks]),
            np.array([b.work for b in blocks], np.float64),
            self._table(self._weights()).astype(np.float64),
            np.array([x * y for x, y in zip(sizes, both, strict=True)], np.float64),
            np.array(
                [x * y * (1 if x > SMALL_RESULT else -1) for x, y in zip(sizes, both, strict=True)]
            ),
            np.array(sources, np.int64),
            self._encoded(holds),
            _starts(needs),
            np.array([b for b, _ in flat], np.int64),
            self._encoded([splits for _, splits in flat]),
            np.array(self.low or [0.0]),
            np.array(self.high or [0.0]),
            _starts(touched),
            np.array([v for own in touched for v in own], np.int64),
        )

    def _per_axis(self, b: int, found: Any) -> list[Split]:
        return [found(b, a) for a in range(len(self.blocks.blocks[b].axes))]

    def _table(self, rows: Sequence[Sequence[int]]) -> Array:
        found = np.zeros((len(rows), self.most), np.int64)
        for i, row in enumerate(rows):
            found[i, : len(row)] = row
        return found

    def _encoded(self, rows: Sequence[Sequence[Split]]) -> Array:
        found = np.zeros((len(rows), self.most, 4), np.int64)
        for i, row in enumerate(rows):
            found[i, : len(row)] = row
        return found

    # -- who holds and who needs what ----------------------------------------------------------

    def _held(self, op: Op, output: int, b: int, a: int) -> Split:
        """How an output lies on the parts."""
        split = self.splits[b][a][op.name]
        if split.kind not in (CUT, EVEN):
            return split
        dims = op.space.outputs[output]
        if split.dim not in dims:
            if is_local_statistics(op, "local"):
                return Split(ALL)
            shape = [op.space.dims[d].size for d in dims]
            return Split(EVEN, longest_dim(shape), True) if shape else Split(ALL, -1, True)
        at = dims.index(split.dim)
        if split.kind == EVEN or not self.blocks.blocks[b].contiguous[a]:
            return Split(split.kind, at)
        points = self._points(op, split.dim, b, a)
        size = op.space.dims[split.dim].size
        return Split(
            CUT, at, table=self._keep([u / size for u in points], [u / size for u in points])
        )

    def _needed(self, op: Op, operand: int, b: int, a: int) -> Split:
        """How an operand is read by the parts."""
        split = self.splits[b][a][op.name]
        if split.kind not in (CUT, EVEN):
            return split
        access, units = op.space.operands[operand], self.blocks.blocks[b].units[a]
        box = [(0, dim.size) for dim in op.space.dims]
        points = self._points(op, split.dim, b, a)
        box[split.dim] = (0, max(1, points[max(1, units // 4)]))
        ranges = [index.range(box) for index in access.indices]
        over = [
            at
            for at, (index, (lo, hi)) in enumerate(zip(access.indices, ranges, strict=True))
            if hi - lo < index.extent and any(term.dim == split.dim for term in index.terms)
        ]
        if len(over) != 1:
            return Split(ALL)
        if split.kind == EVEN or not self.blocks.blocks[b].contiguous[a]:
            return Split(split.kind, over[0])
        index, ranges = access.indices[over[0]], []
        for lo, hi in pairwise(points):
            box[split.dim] = (lo, max(hi, lo + 1))
            ranges.append(index.range(box))
        low = [lo / index.extent for lo, _ in ranges] + [1.0]
        high = [0.0] + [hi / index.extent for _, hi in ranges]
        return Split(CUT, over[0], table=self._keep(low, high))

    def _points(self, op: Op, dim: int, b: int, a: int) -> list[int]:
        """Where units of a block begin in a dimension of an operator."""
        size, units = op.space.dims[dim].size, self.blocks.blocks[b].units[a]
        return [round(size * u / units) for u in range(units + 1)]

    def _keep(self, low: Sequence[float], high: Sequence[float]) -> int:
        at = len(self.low)
        self.low += low
        self.high += high
        return at

    def _read(self, name: str, source: int, hold: list[Split]) -> list[tuple[int, list[Split]]]:
        """The blocks that read a value, and how; without those that only read what they hold."""
        found: dict[tuple[int, tuple[tuple[int, int], ...]], list[Split]] = {}
        for op, operand in self.readers.get(name, ()):
            if op.name not in self.blocks.of:
                continue
            b = self.blocks.of[op.name]
            needs = self._per_axis(b, lambda b, a: self._needed(op, operand, b, a))  # noqa: B023
            if b == source and all(map(self._inside, hold, needs)):
                continue
            found.setdefault((b, tuple((s.kind, s.dim) for s in needs)), needs)
        return [(b, needs) for (b, _), needs in found.items()]

    def _inside(self, hold: Split, need: Split) -> bool:
        """Whether parts of the same units hold what they need."""
        if hold.kind == LONE or hold.kind == ALL:
            return hold.kind == need.kind or (hold.kind == ALL and not hold.partial)
        if (hold.kind, hold.dim) != (need.kind, need.dim):
            return False
        return need.table < 0 or self._same(hold.table, need.table)

    def _same(self, one: int, other: int) -> bool:
        end = one + 1
        while self.low[end] > self.low[end - 1] and self.low[end] < 1.0:
            end += 1
        count = end - one + 1
        return (
            self.low[one : one + count] == self.low[other : other + count]
            and self.high[one : one + count] == self.high[other : other + count]
        )

    # -- parameters ------------------------------------------------------------------------------

    def _weights(self) -> list[list[int]]:
        """By block and axis, bytes of parameters that all of its parts hold."""
        found = [[0] * len(block.axes) for block in self.blocks.blocks]
        for value in self.graph.parameters:
            users = [
                (op, i) for op, i in self.readers.get(value.name, ()) if op.name in self.blocks.of
            ]
            if value.name not in self.active or not users:
                continue
            b = self.blocks.of[users[0][0].name]
            for a in range(len(found[b])):
                if any(self._whole(op, operand, b, a) for op, operand in users):
                    found[b][a] += value.nbytes
        return found

    def _whole(self, op: Op, operand: int, b: int, a: int) -> bool:
        split = self.splits[b][a][op.name]
        if split.kind not in (CUT, EVEN):
            return split.kind == ALL
        access = op.space.operands[operand]
        touched = {term.dim for index in access.indices for term in index.terms}
        return split.dim not in touched | set(op.space.reduced_dims if access.added_once else ())


def _starts(lists: Sequence[Sequence[object]]) -> Array:
    return np.concatenate([[0], np.cumsum([len(own) for own in lists])]).astype(np.int64)


def _splits(block: Block, a: int) -> dict[str, Split]:
    """By operator of a block, what becomes of it when the block is split in two uneven parts."""
    units = block.units[a]
    if units < 2:
        return {name: Split(ALL) for group in block.groups for name in group.ops}
    first = max(1, units // 4)
    runs = (Run(0, first), Run(1, units - first))
    found = {}
    for name, tiling in block_tiles(block, block.axes[a], runs).items():
        assert isinstance(tiling, Grid)
        d = next((d for d, cuts in enumerate(tiling.cuts) if len(cuts) > 2), None)
        if d is None:
            found[name] = Split(ALL if len(tiling.devices) > 1 else LONE)
        else:
            cuts = tiling.cuts[d]
            as_units = cuts == cut_points(cuts[-1], 2, [first, units - first])
            found[name] = Split(CUT if as_units else EVEN, d)
    return found
