"""Builds the blocks of a mixed partition: sets of operators that are split along the same axis.

A *mixed* partition splits each layer along an axis that the search chooses. A *part* is a device. A *block*
is a layer (all groups of operators that share its weights) with the operators that follow it: pools,
reshapes, a loss. So the pooled map is sent, and not the larger one before it. A block is split along one
*axis*, a letter of the layer's dimensions: n sample, c filter, k input channel, h height, w width. The
*units* of an axis (samples, filters, ...) are divided among the parts. A part may have several ranges of
units, or none:

    n: 0:8@0 8:20@1 20:24@0      eight samples on device 0, twelve on device 1, four more on device 0
"""

# b: block; g: group of operators that a search splits together (searches/groups.py); group.reduced: the
# letters that are summed; m: member of a group, with its operator m.op

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raddle.graph.graph import Graph
from raddle.graph.ops import work
from raddle.plans.tiling import Grid, Tiling
from raddle.searches.configurations import Configuration, tiles
from raddle.searches.grids import BatchIndependentOps, Tiles, copies
from raddle.searches.groups import Group, find_groups
from raddle.searches.hypergraph.network import build_network

INTERCHANGEABLE = "nck"  # axes of which a part may have several ranges


class UnitRun(NamedTuple):
    """Consecutive units of an axis that are on one device."""

    device: int
    units: int  # how many


UnitRuns = tuple[UnitRun, ...]  # all units of an axis, in order


@dataclass(frozen=True)
class MixedBlock:
    """Groups of operators that are split together; the first is the layer, if there is one."""

    groups: tuple[Group, ...]
    axes: tuple[str, ...]  # letters along which the block can be split
    units: tuple[int, ...]  # by axis: the number of units
    work: int  # FLOPs of its layers in a forward
    contiguous: tuple[bool, ...]  # by axis: each part must have one range, in the order of parts

    @property
    def name(self) -> str:
        """The name of the first group: of the layer, if there is one."""
        return self.groups[0].name


@dataclass(frozen=True)
class MixedBlocks:
    """All blocks of a graph in the order in which they run."""

    graph: Graph
    blocks: tuple[MixedBlock, ...]
    block_of: Mapping[str, int]  # number of the block, by name of the operator
    independent_ops: BatchIndependentOps  # operators that read no samples; they are in no block
    layer_ops: frozenset[str]  # names of operators of layers: only their work counts for balance

    def tiles(self, ranges: Sequence[tuple[str, UnitRuns]], parts: int) -> Tiles:
        """Returns the tiles of a plan; ranges: axis and runs of each block."""
        placed: Tiles = {}
        for block, (axis, runs) in zip(self.blocks, ranges, strict=True):
            placed.update(block_tiles(block, axis, runs))
        # These operators are placed where their results are read; those without readers on all parts.
        for op in (op for op in reversed(self.graph.ops) if op.name in self.independent_ops.names):
            placed.update(
                self.independent_ops.place([op], placed) or {op.name: copies(op, range(parts))}
            )
        return placed

    def work(self, tilings: Mapping[str, Tiling], parts: int) -> list[int]:
        """Returns the FLOPs of the layers in a forward, by part."""
        part_work = [0] * parts
        for op in self.graph.ops:
            if op.name in self.layer_ops:
                for tile in tilings[op.name].tiles:
                    part_work[tile.device] += work(op, tile.box).flops
        return part_work


def build_blocks(graph: Graph) -> MixedBlocks:
    """Builds the blocks of a graph."""
    all_groups = find_groups(graph)
    # FLOPs of a forward, by name of the operator; only of operators of layers (network.py)
    flops = {
        name: work(op, op.space.full).flops
        for layer in build_network(graph).layers
        for op in graph.ops
        if (name := op.name) in layer.ops
    }
    group_lists = _group_into_blocks(graph, all_groups, flops)
    # Whether the graph has batch norms. Their statistics are assumed to be those of one tile (bn: local).
    # An operator of the kind "moments" computes them.
    local_statistics = any(
        op.kind == "moments" and op.composite_kind == "batch_norm" for op in graph.ops
    )
    blocks = tuple(
        _build_block([all_groups[g] for g in members], flops, local_statistics)
        for members in group_lists
    )
    block_of = {
        name: b for b, block in enumerate(blocks) for group in block.groups for name in group.ops
    }
    return MixedBlocks(graph, blocks, block_of, BatchIndependentOps(graph), frozenset(flops))


# -- from groups to blocks ---------------------------------------------------------------------------


def _group_into_blocks(
    graph: Graph, all_groups: Sequence[Group], flops: Mapping[str, int]
) -> list[list[int]]:
    """Returns the groups of each block, by number.

    Groups that share a weight are in one block. A group without a weight is in the block of the largest
    value that it reads, unless it is a product (as in attention) or a concatenation.
    """
    group_of = {name: g for g, group in enumerate(all_groups) for name in group.ops}
    producer = {o: group_of[op.name] for op in graph.ops if op.name in group_of for o in op.outputs}
    root = list(range(len(all_groups)))  # union-find: groups with the same root form a block

    def find_root(g: int) -> int:
        """Returns the group that stands for the block of group g."""
        while root[g] != g:
            g = root[g]
        return g

    by_weight: dict[str, int] = {}
    for g, group in enumerate(all_groups):
        for name in _weights(graph, group):
            root[find_root(g)] = find_root(by_weight.setdefault(name, g))
    # Roots of blocks with a weight
    weighted = {find_root(g) for g in by_weight.values()}
    for g, group in enumerate(all_groups):
        can_follow = (
            not any(m.op.space.is_product for m in group.members) and find_root(g) not in weighted
        )
        read = {
            name: producer[name]
            for member in group.members
            for name in member.op.inputs
            if name in producer and producer[name] != g
        }
        if can_follow and read and "cat" not in {m.op.kind for m in group.members}:
            largest = max(read, key=lambda name: (graph.values[name].nbytes, read[name]))
            root[g] = find_root(read[largest])
    members: dict[int, list[int]] = {}
    for g in range(len(all_groups)):
        members.setdefault(find_root(g), []).append(g)
    # The layer is first: its letters are the axes.
    return [
        sorted(block_groups, key=lambda g: not all_groups[g].ops & flops.keys())
        for block_groups in members.values()
    ]


def _weights(graph: Graph, group: Group) -> Iterable[str]:
    """Yields the names of the parameters that a group reads, trained or frozen."""
    for member in group.members:
        for name in member.op.inputs:
            if graph.values[name].role in ("parameter", "frozen"):
                yield name


def _build_block(
    members: Sequence[Group], flops: Mapping[str, int], local_statistics: bool
) -> MixedBlock:
    """Returns the block of some groups with the axes along which all its layers can be split.

    flops: by name of an operator of a layer; local_statistics: whether the graph has batch norms, each
    part of which computes the statistics of its own samples.
    """
    first = members[0]
    layers = [g for g in members if g.ops & flops.keys()]
    axes, units = [], []
    for letter, size in zip(first.letters, first.sizes, strict=True):
        if all(letter in g.letters for g in layers):
            sizes = [g.sizes[g.letters.index(letter)] for g in members if letter in g.letters]
            axes.append(letter)
            # Units of filters and of input channels are those of the layer. Of any other axis there are as
            # many as in the group that has the fewest: a pool, for example, reduces height and width.
            units.append(size if letter in "ck" else min(sizes))
    work = sum(flops.get(name, 0) for g in members for name in g.ops)
    # Local batch norm statistics are those of one tile, so a part needs one range of samples.
    contiguous = [
        letter not in INTERCHANGEABLE or (local_statistics and letter == "n") for letter in axes
    ]
    return MixedBlock(tuple(members), tuple(axes), tuple(units), work, tuple(contiguous))


# -- from parts to tiles ---------------------------------------------------------------------------


def block_tiles(block: MixedBlock, axis: str, runs: UnitRuns) -> Tiles:
    """Returns the tiles of all operators of a block that is split along `axis`."""
    op_tiles: Tiles = {}
    for group in block.groups:
        group_tiles = tiles(group, group_configuration(group, axis, runs))
        op_tiles.update(
            {name: _one_copy_per_device(tiling) for name, tiling in group_tiles.items()}
        )
    return op_tiles


def group_configuration(group: Group, axis: str, runs: UnitRuns) -> Configuration:
    """Returns the split of one group of a block.

    A group that lacks the axis, or is too small along it for the number of runs, is split equally by
    channel or by sample; if it cannot be split so either, it is on one device.
    """
    devices = tuple(dict.fromkeys(run.device for run in runs))
    if len(devices) == 1:
        return Configuration((1,) * len(group.letters), devices)
    sizes = dict(zip(group.letters, group.sizes, strict=True))
    if sizes.get(axis, 0) >= len(runs):
        return Configuration(
            _degrees(group, axis, len(runs)),
            tuple(run.device for run in runs),
            tuple(run.units for run in runs),  # the relative sizes of the ranges
        )
    for letter in "cn":
        if sizes.get(letter, 0) >= len(devices) and letter not in group.reduced:
            return Configuration(_degrees(group, letter, len(devices)), devices)
    return Configuration((1,) * len(group.letters), devices[:1])


def _degrees(group: Group, axis: str, parts: int) -> tuple[int, ...]:
    """Returns, for each letter of the group, into how many ranges it is split."""
    return tuple(parts if letter == axis else 1 for letter in group.letters)


def _one_copy_per_device(tiling: Tiling) -> Tiling:
    """Removes repeated devices from a tiling of copies: a device with several ranges needs one copy."""
    assert isinstance(tiling, Grid)
    devices = tuple(dict.fromkeys(tiling.devices))
    if tiling.copies == 1 or len(devices) == len(tiling.devices):
        return tiling
    assert len(tiling.boxes) == 1, "only one axis is split, so an operator with copies is whole"
    return Grid(tiling.cuts, devices, len(devices))
