"""The tiles of a group's members in all configurations of the group at once, on every sampled device.

On large clusters only a sample of the devices is considered (transfers.sampled_devices). A lattice has all
configurations of a group, as arrays (ranges.py).

A layout has the tiles of one member. It is the same as member_tilings (configurations.py) gives for each
configuration. A letter, which names a dimension, usually cuts a dimension in the same way whatever the
other letters do, so most ranges are computed letter by letter (ranges.py). Only where several letters may
cut one dimension, configurations are computed one by one.

Example of two letters that cut one dimension: a linear layer y[n c] is split n/2 k/2, where k is summed.
Two devices have partial sums of the same half of y. They merge them, and each keeps a slice: a half of that
half, cut along its longest dimension. If that is n, the letters n and k have cut the dimension n into four
parts, and the members that read y are split in the same way (configurations.py).
"""

# x: configuration of a group, d: number of a sampled device, or dimension of an operator, a: axis (position
# of a letter in Group.letters), k: number of a member of a group. Degree: the number of parts of a letter.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from raddle.graph.needed_operands import needed_operands
from raddle.graph.space import Space
from raddle.searches.configurations import degrees, degrees_up_to, max_copies, member_tilings
from raddle.searches.groups import AFTER, BY_LETTERS, Group, Member
from raddle.searches.optcnn.member_ranges import Dims, MemberRanges
from raddle.searches.optcnn.ranges import Array, Cuts, Lattice, Ranges


class Need(NamedTuple):
    """The part of an operand that each device reads."""

    ranges: tuple[Ranges, ...]  # for each dimension of the operand
    present: Array  # [x, d]: whether the device reads any of it


class TilePlacement(NamedTuple):
    """The properties of a member that decide which devices have a tile of it."""

    # For each split dimension: the axes that split it, and Ranges.unsplit_degrees. These are degrees above
    # 1 of its axis that leave this dimension whole, for example because its parts would overlap.
    split_axes: frozenset[tuple[tuple[int, ...], frozenset[int]]]
    max_copies: int  # with more copies of a tile, only the first is computed


@dataclass(eq=False)
class MemberLayout:
    """The tiles of one member in all configurations. Members with equal tiles share the object."""

    lattice: Lattice  # the configurations
    space: Space  # the iteration space of the operator
    dims: Dims  # for each dimension, the ranges that devices have
    present: Array  # [x, d]: whether the device has a tile
    placement: TilePlacement | None  # None: computed configuration by configuration
    needs: tuple[Need, ...] = ()  # for each operand
    seconds_cache: dict[Any, Any] = field(default_factory=dict)  # of tile_times.py

    @cached_property
    def outputs(self) -> list[tuple[Ranges, ...]]:
        """For each output, the ranges of its dimensions."""
        return [tuple(self.dims[d] for d in output) for output in self.space.outputs]

    @cached_property
    def summed(self) -> tuple[int, ...]:
        """The axes that split summed dimensions."""
        return tuple(a for d in self.space.reduced_dims for a in self.dims[d].axes)

    @cached_property
    def has_partial_sums(self) -> bool:
        """Whether some configuration splits a summed dimension."""
        # Ranges.index is None for a dimension that no configuration splits.
        return any(self.dims[d].index is not None for d in self.space.reduced_dims)


class LayoutBuilder:
    """Builds the layouts of groups; equal ranges, layouts and lattices are one object.

    devices: indices of the sampled devices in the cluster. device_count: number of devices of the cluster.
    powers_of_two, reduction: which degrees a letter may have (Settings).
    """

    def __init__(
        self,
        devices: Array,
        device_count: int,
        *,
        powers_of_two: bool = True,
        reduction: bool = False,
    ) -> None:
        self.devices, self.device_count, self.powers_of_two, self.reduction = (
            devices,
            device_count,
            powers_of_two,
            reduction,
        )
        self.lattices: dict[tuple[int, ...], Lattice] = {}
        self.member_ranges = MemberRanges()

    def lattice(self, group: Group) -> Lattice:
        """Returns the configurations of a group; shared by groups with the same possible degrees."""
        limits = []  # the largest degree of each letter
        for letter, size in zip(group.letters, group.sizes, strict=True):
            limit = (
                min(size, self.device_count) if self.reduction or letter not in group.reduced else 1
            )
            limits.append(
                degrees_up_to(limit, self.device_count, powers_of_two=self.powers_of_two)[-1]
            )
        key = tuple(limits)
        if key not in self.lattices:
            all_degrees = degrees(
                group, self.device_count, powers_of_two=self.powers_of_two, reduction=self.reduction
            )
            self.lattices[key] = Lattice(list(all_degrees), self.devices)
        return self.lattices[key]

    def layouts(self, group: Group) -> tuple[MemberLayout, ...]:
        """Returns the layout of each member; groups of the same structure share them."""
        place = {m.op.name: k for k, m in enumerate(group.members)}  # by name, the member's number
        lattice = self.lattice(group)
        # how, ref, operand, output: from which other member (ref) a member gets its tiles (groups.Member)
        structure = tuple(
            (id(m.op.space), m.how, place.get(m.ref), m.operand, m.output, m.op.kind, m.op.opaque)
            for m in group.members
        )
        key = ("group", id(lattice), group.letters, structure)
        return self.member_ranges.cached(key, self._layouts, group, lattice)  # type: ignore[no-any-return]

    def _layouts(self, group: Group, lattice: Lattice) -> tuple[MemberLayout, ...]:
        """Returns what `layouts` returns, computed without the cache."""
        spaces = {m.op.name: m.op.space for m in group.members}
        dims: dict[str, Dims] = {}
        # Axes that may cut a dimension together with another axis: those of summed letters (see the example
        # at the top of this file), and those that from_reader adds.
        combined_axes = {a for a, letter in enumerate(group.letters) if letter in group.reduced}
        for m in group.members:
            if m.how == BY_LETTERS:
                dims[m.op.name] = self.member_ranges.by_letters(group, m, lattice)
            elif m.how == AFTER:
                dims[m.op.name] = self.member_ranges.from_producer(m, spaces, dims)
            else:
                dims[m.op.name] = self.member_ranges.from_reader(
                    m, lattice, spaces, dims, combined_axes
                )
        # options[a][-1]: the largest degree of axis a. enumerated: the configurations to compute one by
        # one.
        split_axes = [a for a in combined_axes if lattice.options[a][-1] > 1]
        enumerated = (
            np.flatnonzero((lattice.parts[:, split_axes] > 1).any(axis=1)).tolist()
            if split_axes
            else []
        )
        tilings = [member_tilings(group, lattice.degrees[x]) for x in enumerated]
        layouts = []
        for k, m in enumerate(group.members):
            member_dims = dims[m.op.name]
            placement, present = self._placement(m, lattice, member_dims)
            # In BY_LETTERS members, every letter cuts its own dimension.
            if enumerated and m.how != BY_LETTERS:
                rows = {x: by_member[k] for x, by_member in zip(enumerated, tilings, strict=True)}
                layouts.append(
                    self._enumerated_layout(m.op.space, lattice, member_dims, present, rows)
                )
            else:
                key = ("layout", id(m.op.space), tuple(map(id, member_dims)), id(present))
                layouts.append(
                    self.member_ranges.cached(
                        key, self._new_layout, lattice, m.op.space, member_dims, present, placement
                    )
                )
        return tuple(layouts)

    def _new_layout(self, *fields: Any) -> MemberLayout:
        """Returns a layout with these fields and its needs."""
        layout = MemberLayout(*fields)
        layout.needs = self._needs(layout)
        return layout

    def _placement(
        self, member: Member, lattice: Lattice, dims: Dims
    ) -> tuple[TilePlacement, Array]:
        """Returns the placement of a member, and [x, d]: whether a device has a tile."""
        split_axes = frozenset((r.axes, r.unsplit_degrees) for r in dims if r.axes)
        placement = TilePlacement(split_axes, max_copies(member))
        return placement, self.member_ranges.cached(
            ("placement", id(lattice), placement), _shared_devices_with_tile, lattice, placement
        )

    def _needs(self, layout: MemberLayout) -> tuple[Need, ...]:
        """Returns the part of each operand that the tiles read."""
        space, dims, present = layout.space, layout.dims, layout.present
        ranges = [
            tuple(self.member_ranges.operand_ranges(index, dims) for index in access.indices)
            for access in space.operands
        ]
        nonempty = [
            reduce(np.logical_and, [r.nonempty for r in operand], present)
            if any(r.has_empty for r in operand)
            else present
            for operand in ranges
        ]
        # Whether a device has the first part of the summed dimensions: it alone adds a bias.
        in_first_part = [
            r.lo[r.index] == 0 for r in (dims[d] for d in space.reduced_dims) if r.index is not None
        ]
        needed_on = needed_operands(
            space.operands,
            nonempty,
            np.logical_and.reduce(in_first_part) if in_first_part else None,
        )
        return tuple(Need(r, n) for r, n in zip(ranges, needed_on, strict=True))

    # -- several letters cut one dimension -------------------------------------------------------

    def _enumerated_layout(
        self, space: Space, lattice: Lattice, dims: Dims, present: Array, rows: Mapping[int, Any]
    ) -> MemberLayout:
        """Returns the layout with the given tilings in some configurations.

        rows: configuration -> MemberTiling. In the other configurations, `dims` and `present` say the
        tiles.
        """
        # For each device of the cluster, its number d in the sample; -1: it is not in the sample.
        column = np.full(self.device_count, -1)
        column[lattice.devices] = np.arange(len(lattice.devices))
        has_tile = present.copy()
        builders = [_RangesBuilder(ranges, lattice) for ranges in dims]
        for x, tiling in rows.items():
            # tiling.positions: the devices of the tiles, here as indices in the cluster, because the
            # configurations of a lattice are on its first devices. tile: for each of them, the number of
            # its tile; copies of a tile follow each other.
            tile = np.arange(len(tiling.positions)) // tiling.copies
            columns = column[list(tiling.positions)]
            tile, columns = tile[columns >= 0], columns[columns >= 0]
            has_tile[x] = False
            has_tile[x, columns] = True
            coordinates = np.unravel_index(tile, [len(c) - 1 for c in tiling.cuts]) if dims else ()
            for builder, cuts, coordinate in zip(builders, tiling.cuts, coordinates, strict=True):
                builder.add(x, cuts, columns, coordinate)
        return self._new_layout(
            lattice, space, tuple(dim_builder.ranges() for dim_builder in builders), has_tile, None
        )


class _RangesBuilder:
    """Builds the ranges of a dimension: copies given ranges, and replaces those of some configurations."""

    def __init__(self, start: Ranges, lattice: Lattice) -> None:
        self.start = start
        self.lo, self.hi = start.lo.tolist(), start.hi.tolist()
        self.index = (
            np.zeros(lattice.used.shape, np.int64) if start.index is None else start.index.copy()
        )
        self.first: dict[Cuts, int] = {}  # cut points -> number of their first range

    def add(self, x: int, cuts: Cuts, devices: Array, coordinate: Array) -> None:
        """Sets the ranges of configuration x: devices[i] has part number coordinate[i] of the cuts."""
        if cuts not in self.first:
            self.first[cuts] = len(self.lo)
            self.lo += cuts[:-1]
            self.hi += cuts[1:]
        self.index[x] = self.first[cuts]
        self.index[x, devices] += coordinate

    def ranges(self) -> Ranges:
        """Returns the ranges that were built."""
        if self.start.index is None and all(len(cuts) == 2 for cuts in self.first):
            return self.start
        # `axes` stays incomplete: where merged sums are kept in slices, summed axes cut the dimension, too.
        return Ranges(np.array(self.lo), np.array(self.hi), self.index, self.start.axes)


def devices_with_tile(lattice: Lattice, placement: TilePlacement, devices: Array) -> Array:
    """Returns [x, d]: whether a device has a tile.

    Letters that do not split the member make copies. If there are more than configurations.max_copies, only
    the device with the first copy has a tile.
    """
    # copies: [x], number of copies of a tile; first: [x, d], whether the device would have the first copy
    copies = np.ones(len(lattice.parts), np.int64)
    first = np.ones((len(lattice.parts), len(devices)), bool)
    for a in range(lattice.parts.shape[1]):
        parts = lattice.parts[:, a]
        split = np.zeros(len(parts), bool)
        for axes, unsplit_degrees in placement.split_axes:
            if axes == (a,):
                split |= ~np.isin(parts, sorted(unsplit_degrees))
        if not split.all():
            copies = np.where(split, copies, copies * parts)
            first &= split[:, None] | (lattice.coordinate(a, devices) == 0)
    few_copies = copies <= placement.max_copies
    used = devices[None, :] < lattice.total[:, None]
    return np.asarray(used & (few_copies[:, None] | first))


def _shared_devices_with_tile(lattice: Lattice, placement: TilePlacement) -> Array:
    """Returns devices_with_tile of the sampled devices; lattice.used itself if that array is equal.

    lattice.used: whether a configuration uses a device. Equal arrays are one object, because caches have
    ids of arrays in their keys.
    """
    has_tile = devices_with_tile(lattice, placement, lattice.devices)
    return lattice.used if np.array_equal(has_tile, lattice.used) else has_tile
