"""Boxes of a group's members under all of its configurations at once, on every device.

How members follow is what configurations.py says of each configuration. A letter cuts a dimension in the
same way whatever the others do, so it is worked out letter by letter; configurations are asked one by one
only where several letters cut one dimension together.
"""

# x: configuration, d: device or dimension of an operator, a: axis, p: dimension of a value, q: degree

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from raddle.graph.needed_operands import needed
from raddle.graph.space import Space
from raddle.searches.configurations import degrees, max_copies, member_tilings
from raddle.searches.groups import AFTER, BY_LETTERS, Group, Member
from raddle.searches.optcnn.member_ranges import Dims, Following
from raddle.searches.optcnn.ranges import Array, Cuts, Lattice, Ranges


class Need(NamedTuple):
    """What is read of an operand: ranges by its dimensions, on the devices that need any of it."""

    ranges: tuple[Ranges, ...]
    present: Array  # [x, d]


class Placing(NamedTuple):
    """What decides which devices have a tile."""

    cut: frozenset[tuple[tuple[int, ...], frozenset[int]]]  # axes, and degrees that they do not cut
    most: int  # copies of a tile; of more, the first is the only one


@dataclass(eq=False)
class Layout:
    """The tiles of operators of one space: ranges by dimension, on the devices that have a tile."""

    lattice: Lattice
    space: Space
    dims: Dims
    present: Array  # [x, d]
    placing: Placing | None  # none where it was written down configuration by configuration
    needs: tuple[Need, ...] = ()  # by operand
    known: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def outputs(self) -> list[tuple[Ranges, ...]]:
        return [tuple(self.dims[d] for d in output) for output in self.space.outputs]

    @cached_property
    def summed(self) -> tuple[int, ...]:
        """The axes that split summed dimensions, in the order of the dimensions."""
        return tuple(a for d in self.space.reduced_dims for a in self.dims[d].axes)

    @cached_property
    def partial(self) -> bool:
        """Whether there are configurations that split summed dimensions."""
        return any(self.dims[d].at is not None for d in self.space.reduced_dims)


class Atlas:
    """Lays groups out; what has been laid out before is the same object again."""

    def __init__(
        self, devices: Array, most: int, *, powers: bool = True, reduction: bool = False
    ) -> None:
        self.devices, self.most, self.powers, self.reduction = devices, most, powers, reduction
        self.lattices: dict[tuple[int, ...], Lattice] = {}
        self.following = Following()

    def lattice(self, group: Group) -> Lattice:
        limits = []
        for letter, size in zip(group.letters, group.sizes, strict=True):
            limit = min(size, self.most) if self.reduction or letter not in group.reduced else 1
            limits.append(1 << (limit.bit_length() - 1) if self.powers else limit)
        key = tuple(limits)
        if key not in self.lattices:
            found = degrees(group, self.most, powers=self.powers, reduction=self.reduction)
            self.lattices[key] = Lattice(list(found), self.devices)
        return self.lattices[key]

    def layouts(self, group: Group) -> tuple[Layout, ...]:
        """Of all members, in their order; groups of the same structure have the same ones."""
        place = {m.op.name: k for k, m in enumerate(group.members)}
        lattice = self.lattice(group)
        structure = tuple(
            (id(m.op.space), m.how, place.get(m.ref), m.operand, m.output, m.op.kind, m.op.opaque)
            for m in group.members
        )
        key = ("group", id(lattice), group.letters, structure)
        return self.following.once(key, self._layouts, group, lattice)  # type: ignore[no-any-return]

    def _layouts(self, group: Group, lattice: Lattice) -> tuple[Layout, ...]:
        spaces = {m.op.name: m.op.space for m in group.members}
        dims: dict[str, Dims] = {}
        # Sums that are split are divided once more by what follows them: that takes two letters.
        apart = {a for a, letter in enumerate(group.letters) if letter in group.reduced}
        for m in group.members:
            if m.how == BY_LETTERS:
                dims[m.op.name] = self.following.own(group, m, lattice)
            elif m.how == AFTER:
                dims[m.op.name] = self.following.after(m, spaces, dims)
            else:
                dims[m.op.name] = self.following.before(m, lattice, spaces, dims, apart)
        split = [a for a in apart if lattice.options[a][-1] > 1]
        slow = np.flatnonzero((lattice.parts[:, split] > 1).any(axis=1)).tolist() if split else []
        found = [member_tilings(group, lattice.degrees[x]) for x in slow]
        layouts = []
        for k, m in enumerate(group.members):
            own = dims[m.op.name]
            placing, present = self._placed(m, lattice, own)
            if (
                slow and m.how != BY_LETTERS
            ):  # of those that are, every letter cuts its own dimension
                rows = {x: each[k] for x, each in zip(slow, found, strict=True)}
                layouts.append(self._written(m.op.space, lattice, own, present, rows))
            else:
                key = ("layout", id(m.op.space), tuple(map(id, own)), id(present))
                layouts.append(
                    self.following.once(key, self._laid, lattice, m.op.space, own, present, placing)
                )
        return tuple(layouts)

    def _laid(self, *given: Any) -> Layout:
        layout = Layout(*given)
        layout.needs = self._needs(layout)
        return layout

    def _placed(self, member: Member, lattice: Lattice, dims: Dims) -> tuple[Placing, Array]:
        cut = frozenset((r.axes, r.uncut) for r in dims if r.axes)
        placing = Placing(cut, max_copies(member))
        return placing, self.following.once(
            ("placing", id(lattice), placing), _present, lattice, placing
        )

    def _needs(self, layout: Layout) -> tuple[Need, ...]:
        space, dims, present = layout.space, layout.dims, layout.present
        ranges = [
            tuple(self.following.index(index, dims) for index in access.indices)
            for access in space.operands
        ]
        full = [
            reduce(np.logical_and, [r.full for r in own], present)
            if any(r.gaps for r in own)
            else present
            for own in ranges
        ]
        first = [r.lo[r.at] == 0 for r in (dims[d] for d in space.reduced_dims) if r.at is not None]
        some = needed(space.operands, full, np.logical_and.reduce(first) if first else None)
        return tuple(Need(r, n) for r, n in zip(ranges, some, strict=True))

    # -- where letters do not cut alone ----------------------------------------------------------

    def _written(
        self, space: Space, lattice: Lattice, dims: Dims, present: Array, rows: Mapping[int, Any]
    ) -> Layout:
        """As the configurations say that are given, and letter by letter under the others."""
        number = np.full(self.most, -1)
        number[lattice.devices] = np.arange(len(lattice.devices))
        here = present.copy()
        books = [_Book(ranges, lattice) for ranges in dims]
        for x, follower in rows.items():
            tile = np.arange(len(follower.places)) // follower.copies
            seen = number[list(follower.places)]
            tile, seen = tile[seen >= 0], seen[seen >= 0]
            here[x] = False
            here[x, seen] = True
            spots = np.unravel_index(tile, [len(c) - 1 for c in follower.cuts]) if dims else ()
            for book, cuts, spot in zip(books, follower.cuts, spots, strict=True):
                book.write(x, cuts, seen, spot)
        return self._laid(lattice, space, tuple(book.ranges() for book in books), here, None)


class _Book:
    """Ranges that are written configuration by configuration."""

    def __init__(self, start: Ranges, lattice: Lattice) -> None:
        self.start = start
        self.lo, self.hi = start.lo.tolist(), start.hi.tolist()
        self.at = np.zeros(lattice.alive.shape, np.int64) if start.at is None else start.at.copy()
        self.first: dict[Cuts, int] = {}

    def write(self, x: int, cuts: Cuts, devices: Array, spot: Array) -> None:
        if cuts not in self.first:
            self.first[cuts] = len(self.lo)
            self.lo += cuts[:-1]
            self.hi += cuts[1:]
        self.at[x] = self.first[cuts]
        self.at[x, devices] += spot

    def ranges(self) -> Ranges:
        if self.start.at is None and all(len(cuts) == 2 for cuts in self.first):
            return self.start
        # Its axes are those that it always depends on: slices of a merge may add others.
        return Ranges(np.array(self.lo), np.array(self.hi), self.at, self.start.axes)


def present(lattice: Lattice, placing: Placing, devices: Array) -> Array:
    """[x, d]: which devices have a tile: see configurations.py on copies."""
    copies = np.ones(len(lattice.parts), np.int64)
    first = np.ones((len(lattice.parts), len(devices)), bool)
    for a in range(lattice.parts.shape[1]):
        parts = lattice.parts[:, a]
        split = np.zeros(len(parts), bool)
        for axes, uncut in placing.cut:
            if axes == (a,):
                split |= ~np.isin(parts, sorted(uncut))
        if not split.all():
            copies = np.where(split, copies, copies * parts)
            first &= split[:, None] | (lattice.coordinate(a, devices) == 0)
    everywhere = copies <= placing.most
    alive = devices[None, :] < lattice.total[:, None]
    return np.asarray(alive & (everywhere[:, None] | first))


def _present(lattice: Lattice, placing: Placing) -> Array:
    found = present(lattice, placing, lattice.devices)
    return lattice.alive if np.array_equal(found, lattice.alive) else found
