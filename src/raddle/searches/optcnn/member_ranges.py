"""The ranges of the dimensions of a group's members in all configurations, computed letter by letter.

A group is a set of operators, its members, that are split together; a letter names a dimension. The rules
are those of configurations.py: a member is split by its own letters, like the member that it reads, or like
the member that reads it. `ref` is the name of that other member; `operand` and `output` say which operand
of the one is which output of the other (groups.Member).

A lattice has all configurations of a group; lattice.options[a] are the possible degrees of axis a. Ranges
are the parts of one dimension, over all these degrees; their `axes` are empty if nothing splits the
dimension (both in ranges.py). An index expression, such as h*2+R, says which elements of an operand's
dimension an operator reads; it is a sum of terms with one dimension each (graph/index.py).
"""

# a: axis (position of a letter), d: dimension of an operator, p: dimension of a value, q: degree

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from raddle.graph.index import Index
from raddle.graph.space import Space
from raddle.plans.tiling import even_cuts
from raddle.searches.configurations import cuts_between
from raddle.searches.groups import Group, Member
from raddle.searches.optcnn.ranges import (
    Cuts,
    Lattice,
    Ranges,
    ranges_read,
    single_range,
    split_ranges,
)

Dims = tuple[Ranges, ...]  # for each dimension of an operator


class MemberRanges:
    """Computes ranges of members; equal inputs give the same object again."""

    def __init__(self) -> None:
        self.whole_ranges: dict[int, Ranges] = {}  # by size
        # By id of lattice, axis and size.
        self.split_ranges: dict[tuple[int, int, int], Ranges] = {}
        self.operand_cache: dict[Any, Any] = {}  # of ranges.ranges_read
        self.cache: dict[Hashable, Any] = {}  # of all other results

    def cached(self, key: Hashable, make: Callable[..., Any], *inputs: Any) -> Any:
        """Returns make(*inputs), computed once for each key.

        Keys contain ids of objects. These objects live as long as this one or the graph, so that no other
        object gets the same id.
        """
        if key not in self.cache:
            self.cache[key] = make(*inputs)
        return self.cache[key]

    def _whole(self, size: int) -> Ranges:
        """Returns the range of a dimension that is not split."""
        ranges = self.whole_ranges.get(size)
        if ranges is None:
            ranges = self.whole_ranges[size] = single_range(0, size)
        return ranges

    def _split(self, lattice: Lattice, a: int, size: int) -> Ranges:
        """Returns the ranges of a dimension that axis `a` splits into equal parts."""
        ranges = self.split_ranges.get((id(lattice), a, size))
        if ranges is None:
            cuts = [even_cuts(size, q) if size >= q else () for q in lattice.options[a].tolist()]
            ranges = self.split_ranges[id(lattice), a, size] = split_ranges(lattice, a, size, cuts)
        return ranges

    def by_letters(self, group: Group, member: Member, lattice: Lattice) -> Dims:
        """Returns the ranges of a member that is split by the letters of its own dimensions."""
        dim_ranges: list[Ranges] = []
        names: list[str] = []
        for dim in member.op.space.dims:
            a = group.letters.index(dim.name) if dim.name in group.letters else -1
            # options[a][-1]: the largest degree of axis a
            # A letter that an operator has twice splits only its first dimension of that name.
            split = a >= 0 and dim.name not in names and lattice.options[a][-1] > 1
            dim_ranges.append(self._split(lattice, a, dim.size) if split else self._whole(dim.size))
            names.append(dim.name)
        return tuple(dim_ranges)

    def from_producer(
        self, member: Member, spaces: Mapping[str, Space], dims: Mapping[str, Dims]
    ) -> Dims:
        """Returns the ranges of a member that is split like the member that it reads."""
        space = member.op.space
        dim_ranges = [self._whole(dim.size) for dim in space.dims]
        producer_dims = spaces[member.ref].outputs[member.output]
        for p, index in enumerate(space.operands[member.operand].indices):
            # plain_dim: the dimension, if the index is that dimension alone; else None
            d, ranges = index.plain_dim, dims[member.ref][producer_dims[p]]
            # unsplittable: never split, such as R, the extent of a window
            if d is not None and ranges.axes and not space.dims[d].unsplittable:
                dim_ranges[d] = ranges
        return tuple(dim_ranges)

    def from_reader(
        self, member: Member, lattice: Lattice, spaces: Mapping[str, Space],
        dims: Mapping[str, Dims], combined_axes: set[int],
    ) -> Dims:  # fmt: skip
        """Returns the ranges of a member that is split like the member that reads it.

        If several axes cut one dimension, the dimension is left whole here, and the axes are added to
        `combined_axes`: the caller lays out configurations that split these axes one by one.
        """
        space, reader_dims = member.op.space, dims[member.ref]
        dim_ranges = [self._whole(dim.size) for dim in space.dims]
        for p, index in enumerate(spaces[member.ref].operands[member.operand].indices):
            d = space.outputs[member.output][p]
            # dimensions s of the reader that are split and that the index contains
            split_dims = sorted({term.dim for term in index.terms if reader_dims[term.dim].axes})
            if len(split_dims) > 1:
                combined_axes.update(a for s in split_dims for a in reader_dims[s].axes)
            elif split_dims and not space.dims[d].unsplittable:
                key = (
                    "read",
                    _index_key(index),
                    split_dims[0],
                    tuple(map(id, reader_dims)),
                    space.dims[d].size,
                )
                dim_ranges[d] = self.cached(
                    key,
                    self._cut_like_reader,
                    lattice,
                    index,
                    split_dims[0],
                    reader_dims,
                    space.dims[d].size,
                )
        return tuple(dim_ranges)

    def _cut_like_reader(
        self, lattice: Lattice, index: Index, split_dim: int, reader_dims: Dims, size: int
    ) -> Ranges:
        """Returns the ranges of a dimension, cut between the parts that the reader's tiles read.

        A degree at which these parts overlap leaves the dimension whole.
        """
        reader, part = reader_dims[split_dim], self.operand_ranges(index, reader_dims)
        (a,) = reader.axes
        cuts: list[Cuts] = []
        # Number of the first range of degree q: `part` lists q ranges for every degree q, one degree after
        # the other, but only one range in all if nothing splits it.
        first = 0
        for q in lattice.options[a].tolist():
            lo, hi = part.lo[first : first + q].tolist(), part.hi[first : first + q].tolist()
            splits = len(lo) == q and q not in reader.unsplit_degrees
            cuts.append(cuts_between(list(zip(lo, hi, strict=True)), size) if splits else ())
            first += q
        ranges = split_ranges(lattice, a, size, cuts)
        if np.array_equal(ranges.lo, reader.lo) and np.array_equal(ranges.hi, reader.hi):
            return reader
        return ranges if ranges.axes else self._whole(size)

    def operand_ranges(self, index: Index, dims: Dims) -> Ranges:
        """Returns the ranges of an operand's dimension that are read through an index expression."""
        # extent: the size of the operand's dimension. If no range exceeds it, ranges are read as they are.
        plain = index.plain_dim
        if plain is not None and dims[plain].end <= index.extent:
            return dims[plain]
        key = ("index", _index_key(index), tuple((t.dim, id(dims[t.dim])) for t in index.terms))
        return self.cached(key, ranges_read, index, dims, self.operand_cache)  # type: ignore[no-any-return]


def _index_key(index: Index) -> Hashable:
    """Returns the index expression itself as a cache key; its id if it has a table, which may be long.

    A table lists the range that is read at each position, for indices that are no formula (adaptive pools).
    """
    return id(index) if index.table else index
