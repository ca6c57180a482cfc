"""Configurations of a group: into how many parts each letter is split, and on which devices.

    conv1: n/2 c/4 @0-7      degrees (2, 4) of letters (n, c), row by row on the devices

Members that lack a letter are computed in copies, one for each part of it. Where the anchor's sum is split
(k/2), the result is divided among the devices that have parts of it, and what follows takes it so.
"""

# a letter's axis is its position in Group.letters; d is a dimension of an operator

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

Cuts = tuple[int, ...]
ANY_NUMBER = 2**62


class Configuration(NamedTuple):
    """Parts by letter of a group, the devices row by row, and, where parts are uneven, their shares."""

    degrees: tuple[int, ...]
    devices: tuple[int, ...]
    shares: tuple[int, ...] = ()  # of the only letter that is split, by part; none: equal parts


class MemberTiling(NamedTuple):
    """The tiles of one operator under any devices."""

    op: Op
    cuts: tuple[Cuts, ...]
    positions: tuple[int, ...]  # positions in the configuration's devices
    copies: int


def tiles(group: Group, configuration: Configuration) -> dict[str, Tiling]:
    """The tiling of every operator of a group."""
    devices = configuration.devices
    return {
        f.op.name: Grid(f.cuts, tuple(devices[i] for i in f.positions), f.copies)
        for f in member_tilings(group, configuration.degrees, configuration.shares)
    }


def degrees(
    group: Group, max_parts: int, *, powers_of_two: bool = True, reduction: bool = False
) -> Iterator[tuple[int, ...]]:
    """All ways to split a group into at most `most` parts; with `powers`, into powers of two."""
    options = [
        [d for d in range(1, min(size, max_parts) + 1) if not powers_of_two or d & (d - 1) == 0]
        if reduction or letter not in group.reduced
        else [1]
        for letter, size in zip(group.letters, group.sizes, strict=True)
    ]

    def extend(axis: int, room: int) -> Iterator[tuple[int, ...]]:
        if axis == len(options):
            yield ()
            return
        for d in options[axis]:
            if d > room:
                break
            yield from ((d, *other_degrees) for other_degrees in extend(axis + 1, room // d))

    return extend(0, max_parts)


# -- how members follow ----------------------------------------------------------------------------


class _Split(NamedTuple):
    """By dimension of an operator: which axes split it, the first one outermost, and where."""

    axes: tuple[tuple[int, ...], ...]
    cuts: tuple[Cuts, ...]


def member_tilings(
    group: Group, parts: tuple[int, ...], shares: tuple[int, ...] = ()
) -> tuple[MemberTiling, ...]:
    """What each operator of a group does when its letters are split; remembered by the group."""
    key = (parts, shares)
    if key not in group.tilings_cache:
        group.tilings_cache[key] = _member_tilings(group, parts, shares)
    tilings: tuple[MemberTiling, ...] = group.tilings_cache[key]
    return tilings


def _member_tilings(
    group: Group, parts: tuple[int, ...], shares: tuple[int, ...]
) -> tuple[MemberTiling, ...]:
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
            d = index.plain_dim
            if d is not None and output_split.axes[p] and not op.space.dims[d].unsplittable:
                axes[d], cuts[d] = output_split.axes[p], output_split.cuts[p]
    else:
        reader = next(m.op for m in group.members if m.op.name == member.ref)
        _cut_like_reader(op, member, reader, splits[reader.name], axes, cuts)
    return _Split(tuple(axes), tuple(cuts))


def _output_split(ref: Op, split: _Split, output: int, parts: tuple[int, ...]) -> _Split:
    """How an output lies on the devices: as it is split or, where sums are, divided once more."""
    dims = ref.space.outputs[output]
    axes, cuts = [split.axes[d] for d in dims], [split.cuts[d] for d in dims]
    summed = [axis for d in ref.space.reduced_dims for axis in split.axes[d]]
    if summed and ref.space.is_product and dims:
        shape = [c[1] - c[0] for c in cuts]
        along = longest_dim(shape)
        count = math.prod(parts[axis] for axis in summed)
        pieces = [_slice_ends(a, b, count) for a, b in pairwise(cuts[along])]
        if all(len(piece) == count for piece in pieces):
            axes[along] = (*axes[along], *summed)
            cuts[along] = (0, *(at for piece in pieces for at in piece))
    return _Split(tuple(axes), tuple(cuts))


def _slice_ends(a: int, b: int, count: int) -> list[int]:
    """The ends of the slices that a merge makes of a range."""
    return [a + piece.hi[0] for piece in split_longest_dim(Box((0,), (b - a,)), count)]


def _cut_like_reader(
    op: Op, member: Member, reader: Op, split: _Split, axes: list[tuple[int, ...]], cuts: list[Cuts]
) -> None:
    """Cuts an operator where its reader's parts meet, if they do not overlap."""
    for p, index in enumerate(reader.space.operands[member.operand].indices):
        d = op.space.outputs[member.output][p]
        over = sorted({term.dim for term in index.terms if split.axes[term.dim]})
        if len(over) != 1 or op.space.dims[d].unsplittable:
            continue
        box = [(0, dim.size) for dim in reader.space.dims]
        ranges = []
        for span in pairwise(split.cuts[over[0]]):
            box[over[0]] = span
            ranges.append(index.range(box))
        new_cuts = cuts_between(ranges, op.space.dims[d].size)
        if new_cuts:
            axes[d], cuts[d] = split.axes[over[0]], new_cuts


def cuts_between(ranges: Sequence[tuple[int, int]], size: int) -> Cuts:
    """The cut points that ranges leave of a dimension; none where they overlap, miss any, or are empty.

    A part of a concatenation reads nothing of the operands that lie in other parts: its range is empty.

    >>> meeting([(0, 4), (4, 8)], 8), meeting([(0, 5), (3, 8)], 8), meeting([(0, 0), (0, 8)], 8)
    ((0, 4, 8), (), ())
    """
    ends = [0, *(hi for _, hi in ranges)]
    meet = [lo for lo, _ in ranges] == ends[:-1] and ends[-1] == size
    return tuple(ends) if meet and all(a < b for a, b in pairwise(ends)) else ()


def max_copies(member: Member) -> int:
    """How many copies of a tile there may be; where there would be more, the first is the only one."""
    if member.op.opaque:
        return 1  # it may be random, and copies of it could differ
    if member.op.traits.updates_buffer or member.how == BEFORE:
        return ANY_NUMBER  # it belongs where it is read
    return MOST_REPLICAS  # many copies are much talk


def _place(member: Member, split: _Split, parts: tuple[int, ...]) -> MemberTiling:
    op = member.op
    order = [axis for axes in split.axes for axis in axes]
    others = [axis for axis, count in enumerate(parts) if count > 1 and axis not in order]
    copies = math.prod(parts[axis] for axis in others)
    places = np.arange(math.prod(parts)).reshape(parts)
    if copies > max_copies(member):
        places = places[
            tuple(slice(0, 1) if axis in others else slice(None) for axis in range(len(parts)))
        ]
        copies = 1
    ones = [axis for axis, count in enumerate(parts) if count == 1]
    flat = places.transpose([*ones, *order, *others]).reshape(-1)
    return MemberTiling(op, split.cuts, tuple(int(i) for i in flat), copies)


def cut_points(size: int, parts: int, shares: Sequence[int] = ()) -> Cuts:
    """Cut points of equal parts or, given shares, of parts in proportion to them, none of them empty.

    >>> cut(8, 4), cut(8, 4, (3, 3, 1, 1)), cut(9, 2, (3, 1))
    ((0, 2, 4, 6, 8), (0, 3, 6, 7, 8), (0, 7, 9))
    """
    if not shares:
        return even_cuts(size, parts)
    points, total = [0], sum(shares)
    for i in range(parts):
        point = round(size * sum(shares[: i + 1]) / total)
        points.append(min(max(point, points[-1] + 1), size - (parts - 1 - i)))
    return tuple(points)
