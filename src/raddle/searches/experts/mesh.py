"""Two-dimensional meshes of devices, and tiles on them: samples along one axis, a letter along the other.

The devices of a row of the mesh are consecutive, so that they are on one node if rows are not longer than
nodes. `samples` is the number of rows, which is the degree of data parallelism; `inner` that of columns.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

from raddle.graph.graph import Op
from raddle.plans.tiling import Grid, Tiling, even_cuts
from raddle.program.replicated_loss import MOST_REPLICAS
from raddle.searches.grids import Cuts, copies, dim_of

SplitKind = Literal["megatron", "context"]  # what is split over the columns of a mesh


class Mesh(NamedTuple):
    """A mesh of devices for a batch."""

    batch: int
    samples: int  # number of rows
    inner: int  # number of columns

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(range(self.samples * self.inner))

    def sample_cuts(self, op: Op) -> Cuts | None:
        """Returns the cut points of the operator's samples, between samples; None if it has no samples.

        After a reshape, n may be samples times tokens.
        """
        n = dim_of(op, "n")
        if n is None:
            return None
        size = op.space.dims[n].size
        if size % self.batch:
            return even_cuts(size, self.samples) if size >= self.samples else None
        return tuple(size // self.batch * cut for cut in even_cuts(self.batch, self.samples))

    def split(self, op: Op, letter: str, units: int = 1) -> Grid | None:
        """Returns n / samples, letter / inner; None if the operator cannot be split so.

        units: it is cut between as many units of equal size, such as attention heads, if it has them.
        """
        n, d, cuts = dim_of(op, "n"), dim_of(op, letter), self.sample_cuts(op)
        if cuts is None or n is None or d is None or n > d:
            return None
        dim = op.space.dims[d]
        if dim.unsplittable or dim.size < self.inner:
            return None
        unit = dim.size // units if units >= self.inner and dim.size % units == 0 else 1
        inner_cuts = tuple(unit * cut for cut in even_cuts(dim.size // unit, self.inner))
        by_dim = {n: cuts, d: inner_cuts}
        return Grid(
            tuple(by_dim.get(k, (0, x.size)) for k, x in enumerate(op.space.dims)), self.devices
        )

    def copied(self, op: Op) -> Tiling:
        """Returns n / samples with a copy on every device of a row; whole copies without samples."""
        n, cuts = dim_of(op, "n"), self.sample_cuts(op)
        if n is None or cuts is None:
            few = op.traits.updates_buffer or (len(self.devices) <= MOST_REPLICAS and not op.opaque)
            return copies(op, self.devices if few else self.devices[:1])
        if op.opaque:  # it may be random, so that copies could differ
            return copies(op, self.devices[:1])
        return Grid(
            tuple(cuts if k == n else (0, x.size) for k, x in enumerate(op.space.dims)),
            self.devices,
            self.inner,
        )

    def all_samples(self, op: Op) -> Tiling | None:
        """Returns n split over all devices, row by row; None if there are too few samples, or none."""
        n, cuts = dim_of(op, "n"), self.sample_cuts(op)
        if n is None or cuts is None:
            return None
        points = [0]
        for a, b in pairwise(cuts):
            if b - a < self.inner:
                return None
            points += [a + cut for cut in even_cuts(b - a, self.inner)[1:]]
        return Grid(
            tuple(tuple(points) if k == n else (0, x.size) for k, x in enumerate(op.space.dims)),
            self.devices,
        )
