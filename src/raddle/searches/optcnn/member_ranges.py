"""How the members of a group follow its configurations, letter by letter, as ranges of their dimensions."""

# a: axis, d: dimension of an operator, p: dimension of a value, q: degree

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from raddle.graph.index import Index
from raddle.graph.space import Space
from raddle.plans.tiling import even_cuts
from raddle.searches.configurations import cuts_between
from raddle.searches.groups import Group, Member
from raddle.searches.optcnn.ranges import Cuts, Lattice, Ranges, by_axis, constant, indexed

Dims = tuple[Ranges, ...]  # by dimension of an operator


class Following:
    """Ranges of members; what has been worked out before is the same object again."""

    def __init__(self) -> None:
        self.wholes: dict[int, Ranges] = {}
        self.splits: dict[tuple[int, int, int], Ranges] = {}
        self.indices: dict[Any, Any] = {}
        self.known: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[..., Any], *inputs: Any) -> Any:
        """Keys hold ids of objects that live as long as this or the graph."""
        if key not in self.known:
            self.known[key] = make(*inputs)
        return self.known[key]

    def _whole(self, size: int) -> Ranges:
        found = self.wholes.get(size)
        if found is None:
            found = self.wholes[size] = constant(0, size)
        return found

    def _split(self, lattice: Lattice, a: int, size: int) -> Ranges:
        found = self.splits.get((id(lattice), a, size))
        if found is None:
            cuts = [even_cuts(size, q) if size >= q else () for q in lattice.options[a].tolist()]
            found = self.splits[id(lattice), a, size] = by_axis(lattice, a, size, cuts)
        return found

    def own(self, group: Group, member: Member, lattice: Lattice) -> Dims:
        found: list[Ranges] = []
        names: list[str] = []
        for dim in member.op.space.dims:
            a = group.letters.index(dim.name) if dim.name in group.letters else -1
            split = a >= 0 and dim.name not in names and lattice.options[a][-1] > 1
            found.append(self._split(lattice, a, dim.size) if split else self._whole(dim.size))
            names.append(dim.name)
        return tuple(found)

    def after(self, member: Member, spaces: Mapping[str, Space], dims: Mapping[str, Dims]) -> Dims:
        space = member.op.space
        found = [self._whole(dim.size) for dim in space.dims]
        given = spaces[member.ref].outputs[member.output]
        for p, index in enumerate(space.operands[member.operand].indices):
            d, ranges = index.plain_dim, dims[member.ref][given[p]]
            if d is not None and ranges.axes and not space.dims[d].unsplittable:
                found[d] = ranges
        return tuple(found)

    def before(
        self, member: Member, lattice: Lattice, spaces: Mapping[str, Space],
        dims: Mapping[str, Dims], apart: set[int],
    ) -> Dims:  # fmt: skip
        space, read = member.op.space, dims[member.ref]
        found = [self._whole(dim.size) for dim in space.dims]
        for p, index in enumerate(spaces[member.ref].operands[member.operand].indices):
            d = space.outputs[member.output][p]
            over = sorted({term.dim for term in index.terms if read[term.dim].axes})
            if len(over) > 1:
                apart.update(a for e in over for a in read[e].axes)
            elif over and not space.dims[d].unsplittable:
                key = ("read", _name(index), over[0], tuple(map(id, read)), space.dims[d].size)
                found[d] = self.once(
                    key, self._as_read, lattice, index, over[0], read, space.dims[d].size
                )
        return tuple(found)

    def _as_read(self, lattice: Lattice, index: Index, over: int, read: Dims, size: int) -> Ranges:
        """Cut where the reader's parts meet, at the degrees at which they do not overlap."""
        reader, part = read[over], self.index(index, read)
        (a,) = reader.axes
        cuts: list[Cuts] = []
        first = 0
        for q in lattice.options[a].tolist():
            lo, hi = part.lo[first : first + q].tolist(), part.hi[first : first + q].tolist()
            able = len(lo) == q and q not in reader.uncut
            cuts.append(cuts_between(list(zip(lo, hi, strict=True)), size) if able else ())
            first += q
        found = by_axis(lattice, a, size, cuts)
        if np.array_equal(found.lo, reader.lo) and np.array_equal(found.hi, reader.hi):
            return reader
        return found if found.axes else self._whole(size)

    def index(self, index: Index, dims: Dims) -> Ranges:
        """The ranges of an operand's dimension."""
        plain = index.plain_dim
        if plain is not None and dims[plain].end <= index.extent:
            return dims[plain]
        key = ("index", _name(index), tuple((t.dim, id(dims[t.dim])) for t in index.terms))
        return self.once(key, indexed, index, dims, self.indices)  # type: ignore[no-any-return]


def _name(index: Index) -> Hashable:
    return id(index) if index.table else index
