"""Helpers that all methods share: dimensions by letter, grids of tiles, and batch-independent operators.

A letter names a dimension of an operator, such as n (samples). A grid cuts each dimension at some points;
its tiles are all combinations of the parts.

An operator is batch-independent if it reads parameters, buffers and constants only: a slice of the position
embedding, a causal mask, a counter. No method chooses its tiles. It is computed on the devices that read
its result: only the part that is read there, if the reader's tiles do not overlap in it, else all of it.
"""

# d: a dimension of an operator's iteration space; r: a dimension of a reader's

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from raddle.clusters import Cluster
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Grid, Tiling, whole_tiling

Tiles = dict[str, Tiling]  # by operator
Cuts = tuple[int, ...]  # cut points of a dimension, with 0 and its size


def all_devices(cluster: Cluster) -> tuple[int, ...]:
    """Returns the indices of all devices."""
    return tuple(range(len(cluster.devices)))


def dim_of(op: Op, letter: str) -> int | None:
    """Returns the position of the dimension with this letter; None if the operator has none."""
    return next((d for d, dim in enumerate(op.space.dims) if dim.name == letter), None)


def size_of(op: Op, letter: str) -> int:
    """Returns the size of the dimension with this letter; 1 if the operator has none."""
    d = dim_of(op, letter)
    return 1 if d is None else op.space.dims[d].size


def split(op: Op, cuts: Mapping[int, Cuts], devices: Sequence[int]) -> Grid:
    """Returns a grid that is cut along some dimensions, its tiles on the devices in row-major order.

    cuts: cut points by dimension; dimensions without cut points are not cut. devices: indices into
    cluster.devices, one for each tile.
    """
    return Grid(
        tuple(cuts.get(d, (0, dim.size)) for d, dim in enumerate(op.space.dims)), tuple(devices)
    )


def copies(op: Op, devices: Sequence[int]) -> Grid:
    """Returns the grid of a whole operator, not split, with one copy on each of the devices."""
    return whole_tiling([dim.size for dim in op.space.dims], devices)


def copies_unless_opaque(op: Op, devices: Sequence[int]) -> Grid:
    """Returns the grid of a whole operator, a copy on each device; an opaque operator is on the first only.

    Raddle does not know the inside of an opaque operator. It may be random, so that copies could differ.
    """
    return copies(op, devices[:1] if op.opaque else devices)


def batch_independent(graph: Graph) -> set[str]:
    """Returns the names of the operators whose results do not depend on the samples of the batch."""
    # The role of a value is "op" (an operator's result), "input", "parameter", "buffer" and so on.
    fixed_values = {
        name
        for name, value in graph.values.items()
        if value.role not in ("op", "input") or (value.role == "input" and "n" not in value.letters)
    }
    names = set()
    for op in graph.ops:
        if dim_of(op, "n") is None and all(i in fixed_values for i in op.inputs):
            names.add(op.name)
            fixed_values.update(op.outputs)
    return names


class BatchIndependentOps:
    """The batch-independent operators of a graph (`names`), and the readers of every value."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, batch_independent(graph)
        self.readers: dict[str, list[tuple[Op, int]]] = {}  # value -> (reader, which operand)
        for op in graph.ops:
            for operand, name in enumerate(op.inputs):
                self.readers.setdefault(name, []).append((op, operand))

    def read_by(self, names: Iterable[str]) -> tuple[Op, ...]:
        """Returns the batch-independent operators that the named operators read, directly or indirectly.

        They are in reverse order of the graph, so that readers come before the operators that they read.
        """
        reader_names, ops_read = set(names), []
        for op in reversed(self.graph.ops):
            is_read = any(
                reader.name in reader_names
                for output in op.outputs
                for reader, _ in self.readers.get(output, ())
            )
            if op.name in self.names and is_read:
                ops_read.append(op)
                reader_names.add(op.name)
        return tuple(ops_read)

    def place(self, ops: Iterable[Op], tiles: Mapping[str, Tiling]) -> Tiles:
        """Returns tiles for some batch-independent operators, on the devices that read their results.

        ops: the operators, in reverse order of the graph. tiles: the tiles of all other operators that read
        a result of `ops`. An operator without readers gets no tiles.
        """
        placed: Tiles = {}
        for op in ops:
            grids = [  # one for each read of an output; k: number of the output
                _grid_as_read(op, k, reader, operand, placed.get(reader.name) or tiles[reader.name])
                for k, output in enumerate(op.outputs)
                for reader, operand in self.readers.get(output, [])
            ]
            if grids:
                placed[op.name] = _common_grid(op, grids)
        return placed


def place_batch_independent(
    graph: Graph, tiles: Tiles, place_unread: Callable[[Op], Tiling]
) -> None:
    """Adds the tiles of all batch-independent operators to `tiles`.

    place_unread: gives the tiles of an operator without readers.
    """
    independent = BatchIndependentOps(graph)
    ops = [op for op in reversed(graph.ops) if op.name in independent.names]
    for op in ops:
        tiles.update(independent.place([op], tiles) or {op.name: place_unread(op)})


def _grid_as_read(op: Op, output: int, reader: Op, operand: int, tiling: Tiling) -> Grid:
    """Returns the grid of an operator that gives each device the part that one reader reads there.

    If the reader's tiles do not cut the output into disjoint parts, in the order of its dimensions, each of
    the reader's devices gets a whole copy.
    """
    whole_copies = copies(op, sorted(set(tiling.devices)))
    if not isinstance(tiling, Grid) or tiling.copies > 1:
        return whole_copies
    # plain_dim: the reader's dimension, if the index is that dimension alone (x[n k]: n, then k)
    dims = {  # dimension of the reader -> dimension of the operator
        index.plain_dim: op.space.outputs[output][p]
        for p, index in enumerate(reader.space.operands[operand].indices)
        if index.plain_dim is not None
    }
    cut_dims = [r for r, parts in enumerate(tiling.parts) if parts > 1]
    op_dims = [dims.get(r, -1) for r in cut_dims]  # -1: r does not index the output, or not alone
    splittable = all(d >= 0 and not op.space.dims[d].unsplittable for d in op_dims)
    if not splittable or op_dims != sorted(op_dims):  # row-major order of the devices would differ
        return whole_copies
    return split(
        op, {d: tiling.cuts[r] for d, r in zip(op_dims, cut_dims, strict=True)}, tiling.devices
    )


def _common_grid(op: Op, grids: Sequence[Grid]) -> Grid:
    """Returns the grid that all readers need or, if the grids differ, whole copies on all their devices."""
    if all(grid == grids[0] for grid in grids):
        grid = grids[0]
    else:
        grid = copies(op, sorted({d for g in grids for d in g.devices}))
    return copies_unless_opaque(op, grid.devices) if op.opaque else grid
