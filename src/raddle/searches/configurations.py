"""Configurations say how a search splits a group of operators, and give every operator its tiles.

A group (groups.py) is a set of operators that are split together; its first member is the anchor. A letter
names a dimension that can be split, such as n (samples) or c (channels). A configuration has a degree for
each letter, which is its number of parts, and a device for each combination of parts. Example:

    conv1: n/2 c/4 @0-7      degrees (2, 4) of the letters (n, c), on devices 0 to 7 in row-major order

A configuration determines the tiles of every member. A member that lacks a letter is copied, once for each
part of that letter. The tiles of other members follow from the member that they read (AFTER) or that reads
them (BEFORE); see groups.Member. If the anchor's summed dimension is split (k/2), every device first has a
partial sum; the merged result is divided among these devices, and the members after the anchor are split in
that way.
"""

# axis: the position of a letter in Group.letters; d: a dimension of an operator;
# p: a dimension of a value

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.plans.tiling import Grid, Tiling, even_cuts
from raddle.program.merges import longest_dim, split_longest_dim
from raddle.program.replicated_loss import MOST_REPLICAS
from raddle.searches.groups import AFTER, BEFORE, BY_LETTERS, Group, Member

Cuts = tuple[int, ...]  # cut points of a dimension, with 0 and its size
ANY_NUMBER = 2**62  # more copies than there can be: no limit


class Configuration(NamedTuple):
    """How a group is split: the number of parts of each letter, and the devices of the parts."""

    degrees: tuple[int, ...]  # number of parts, for each letter of the group
    devices: tuple[int, ...]  # of the parts, in row-major order: the last letter varies fastest
    shares: tuple[int, ...] = ()  # relative sizes of the parts, if one letter is split unevenly


class MemberTiling(NamedTuple):
    """The tiles of one operator for given degrees. The devices are not chosen yet."""

    op: Op
    cuts: tuple[Cuts, ...]  # cut points of each dimension
    # For each tile, in row-major order, the devices of its copies, as positions in Configuration.devices.
    positions: tuple[int, ...]
    copies: int  # number of copies of each tile


def tiles(group: Group, configuration: Configuration) -> dict[str, Tiling]:
    """Returns the tiling of every operator of a group, by name."""
    devices = configuration.devices
    return {
        tiling.op.name: Grid(
            tiling.cuts, tuple(devices[i] for i in tiling.positions), tiling.copies
        )
        for tiling in member_tilings(group, configuration.degrees, configuration.shares)
    }


def degrees_up_to(limit: int, devices: int, *, powers_of_two: bool) -> list[int]:
    """Returns the degrees of one letter, up to a limit.

    powers_of_two: only powers of two and divisors of the number of devices.

    >>> degrees_up_to(6, 6, powers_of_two=True)
    [1, 2, 3, 4, 6]
    """
    return [
        degree
        for degree in range(1, limit + 1)
        if not powers_of_two or degree & (degree - 1) == 0 or devices % degree == 0
    ]


def degrees(
    group: Group, max_parts: int, *, powers_of_two: bool = True, reduction: bool = False
) -> Iterator[tuple[int, ...]]:
    """Yields the degrees of every way to split a group into at most `max_parts` parts.

    powers_of_two: see degrees_up_to. reduction: summed letters may be split, too.
    """
    options = [
        degrees_up_to(min(size, max_parts), max_parts, powers_of_two=powers_of_two)
        if reduction or letter not in group.reduced
        else [1]
        for letter, size in zip(group.letters, group.sizes, strict=True)
    ]

    def extend(axis: int, room: int) -> Iterator[tuple[int, ...]]:
        """Yields the degrees of the letters from `axis` on, with a product of at most `room`."""
        if axis == len(options):
            yield ()
            return
        for parts in options[axis]:
            if parts > room:
                break
            yield from (
                (parts, *other_degrees) for other_degrees in extend(axis + 1, room // parts)
            )

    return extend(0, max_parts)


# -- tiles of the members --------------------------------------------------------------------------


class _Split(NamedTuple):
    """How the dimensions of an operator, or of a value, are split."""

    axes: tuple[tuple[int, ...], ...]  # for each dimension, the axes that split it, outermost first
    cuts: tuple[Cuts, ...]  # for each dimension, its cut points


def member_tilings(
    group: Group, parts: tuple[int, ...], shares: tuple[int, ...] = ()
) -> tuple[MemberTiling, ...]:
    """Returns the tiles of all members of a group, given the number of parts of each letter; cached."""
    key = (parts, shares)
    if key not in group.tilings_cache:
        group.tilings_cache[key] = _member_tilings(group, parts, shares)
    tilings: tuple[MemberTiling, ...] = group.tilings_cache[key]
    return tilings


def _member_tilings(
    group: Group, parts: tuple[int, ...], shares: tuple[int, ...]
) -> tuple[MemberTiling, ...]:
    """Returns the tiles of all members of a group, computed without the cache."""
    splits: dict[str, _Split] = {}
    tilings = []
    for member in group.members:
        split = _split_member(group, member, parts, shares, splits)
        splits[member.op.name] = split
        tilings.append(_place(member, split, parts))
    return tuple(tilings)


def _split_member(
    group: Group,
    member: Member,
    parts: tuple[int, ...],
    shares: tuple[int, ...],
    splits: dict[str, _Split],
) -> _Split:
    """Returns how a member is split. splits: how the members before it are split, by name."""
    op = member.op
    axes: list[tuple[int, ...]] = [()] * len(op.space.dims)
    cuts: list[Cuts] = [(0, dim.size) for dim in op.space.dims]
    if member.how == BY_LETTERS:
        for axis, (letter, count) in enumerate(zip(group.letters, parts, strict=True)):
            d = next((d for d, dim in enumerate(op.space.dims) if dim.name == letter), None)
            if count > 1 and d is not None and op.space.dims[d].size >= count:
                axes[d], cuts[d] = (axis,), cut_points(op.space.dims[d].size, count, shares)
    elif member.how == AFTER:
        ref = next(m.op for m in group.members if m.op.name == member.ref)
        output_split = _output_split(ref, splits[ref.name], member.output, parts)
        for p, index in enumerate(op.space.operands[member.operand].indices):
            d = index.plain_dim  # None: the index is an expression, such as h*2+R
            if d is not None and output_split.axes[p] and not op.space.dims[d].unsplittable:
                axes[d], cuts[d] = output_split.axes[p], output_split.cuts[p]
    else:
        reader = next(m.op for m in group.members if m.op.name == member.ref)
        _cut_like_reader(op, member, reader, splits[reader.name], axes, cuts)
    return _Split(tuple(axes), tuple(cuts))


def _output_split(ref: Op, split: _Split, output: int, parts: tuple[int, ...]) -> _Split:
    """Returns how an output is split over the devices, after partial sums are merged.

    ref: the operator with that output. split: how the operator is split. If summed dimensions are split,
    the merged result is also divided along its longest dimension.
    """
    dims = ref.space.outputs[output]
    axes, cuts = [split.axes[d] for d in dims], [split.cuts[d] for d in dims]
    summed = [axis for d in ref.space.reduced_dims for axis in split.axes[d]]
    if summed and ref.space.is_product and dims:  # is_product: matrix multiplication or convolution
        shape = [c[1] - c[0] for c in cuts]
        along = longest_dim(shape)
        count = math.prod(parts[axis] for axis in summed)
        # For each part along that dimension, the end points of its slices.
        ends_by_part = [_slice_ends(a, b, count) for a, b in pairwise(cuts[along])]
        if all(len(ends) == count for ends in ends_by_part):
            axes[along] = (*axes[along], *summed)
            cuts[along] = (0, *(end for ends in ends_by_part for end in ends))
    return _Split(tuple(axes), tuple(cuts))


def _slice_ends(a: int, b: int, count: int) -> list[int]:
    """Returns the end points of the `count` slices into which a merge divides the range from a to b."""
    return [a + box.hi[0] for box in split_longest_dim(Box((0,), (b - a,)), count)]


def _cut_like_reader(
    op: Op, member: Member, reader: Op, split: _Split, axes: list[tuple[int, ...]], cuts: list[Cuts]
) -> None:
    """Cuts an operator at the borders of the regions that its reader's parts need, if these are disjoint.

    split: how the reader is split. The result is written into `axes` and `cuts`, which are lists with an
    entry for each dimension of the operator.
    """
    for p, index in enumerate(reader.space.operands[member.operand].indices):
        d = op.space.outputs[member.output][p]
        split_dims = sorted({term.dim for term in index.terms if split.axes[term.dim]})
        if len(split_dims) != 1 or op.space.dims[d].unsplittable:
            continue
        box = [(0, dim.size) for dim in reader.space.dims]
        ranges = []
        for span in pairwise(split.cuts[split_dims[0]]):
            box[split_dims[0]] = span
            ranges.append(index.range(box))
        new_cuts = cuts_between(ranges, op.space.dims[d].size)
        if new_cuts:
            axes[d], cuts[d] = split.axes[split_dims[0]], new_cuts


def cuts_between(ranges: Sequence[tuple[int, int]], size: int) -> Cuts:
    """Returns the cut points between ranges that cover a dimension; () if they overlap or leave gaps.

    It is also () if a range is empty: a part of a concatenation reads nothing of operands in other parts.

    >>> cuts_between([(0, 4), (4, 8)], 8), cuts_between([(0, 5), (3, 8)], 8)
    ((0, 4, 8), ())
    >>> cuts_between([(0, 0), (0, 8)], 8)
    ()
    """
    ends = [0, *(hi for _, hi in ranges)]
    meet = [lo for lo, _ in ranges] == ends[:-1] and ends[-1] == size
    return tuple(ends) if meet and all(a < b for a, b in pairwise(ends)) else ()


def max_copies(member: Member) -> int:
    """Returns the largest allowed number of copies of a tile.

    If there would be more, only the first device computes the tile.
    """
    if member.op.opaque:
        return 1  # an opaque operator (raddle does not know its inside) may be random: copies could differ
    # updates_buffer: for example the running statistics of batch norm
    if member.op.traits.updates_buffer or member.how == BEFORE:
        return ANY_NUMBER  # every device that reads the result computes it itself
    return MOST_REPLICAS  # 8: more copies would cost too many messages


def _place(member: Member, split: _Split, parts: tuple[int, ...]) -> MemberTiling:
    """Returns the tiles of a member, on positions of the configuration's devices.

    Axes that do not split the member make copies of its tiles.
    """
    op = member.op
    split_axes = [axis for axes in split.axes for axis in axes]
    copy_axes = [axis for axis, count in enumerate(parts) if count > 1 and axis not in split_axes]
    copies = math.prod(parts[axis] for axis in copy_axes)
    positions = np.arange(math.prod(parts)).reshape(parts)  # a dimension for each axis
    if copies > max_copies(member):
        positions = positions[
            tuple(slice(0, 1) if axis in copy_axes else slice(None) for axis in range(len(parts)))
        ]
        copies = 1
    # Grid takes the devices of all tiles in row-major order, the copies of a tile next to each other. Axes
    # of one part change nothing.
    ones = [axis for axis, count in enumerate(parts) if count == 1]
    flat = positions.transpose([*ones, *split_axes, *copy_axes]).reshape(-1)
    return MemberTiling(op, split.cuts, tuple(int(i) for i in flat), copies)


def cut_points(size: int, parts: int, shares: Sequence[int] = ()) -> Cuts:
    """Returns the cut points of equal parts or, given shares, of parts in proportion to them.

    No part is empty.

    >>> cut_points(8, 4), cut_points(8, 4, (3, 3, 1, 1)), cut_points(9, 2, (3, 1))
    ((0, 2, 4, 6, 8), (0, 3, 6, 7, 8), (0, 7, 9))
    """
    if not shares:
        return even_cuts(size, parts)
    points, total = [0], sum(shares)
    for i in range(parts):
        point = round(size * sum(shares[: i + 1]) / total)
        points.append(min(max(point, points[-1] + 1), size - (parts - 1 - i)))
    return tuple(points)
