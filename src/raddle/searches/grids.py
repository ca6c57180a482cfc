"""What the methods share: dimensions by letter, grids, and operators that depend on no sample.

An operator that depends on parameters, buffers and constants alone (a slice of an embedding of positions, a
causal mask, a counter) has no place of its own: it is computed where it is read, and only the part that is
read there if that is a part of its own.
"""

# d: a dimension of an operator's iteration space

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from raddle.clusters import Cluster
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Grid, Tiling, whole_tiling

Tiles = dict[str, Tiling]
Cuts = tuple[int, ...]


def all_devices(cluster: Cluster) -> tuple[int, ...]:
    return tuple(range(len(cluster.devices)))


def dim_of(op: Op, letter: str) -> int | None:
    """The dimension with this letter, if the operator has it; capital letters are never split."""
    return next((d for d, dim in enumerate(op.space.dims) if dim.name == letter), None)


def size_of(op: Op, letter: str) -> int:
    """The extent of a dimension; 1 where the operator lacks it."""
    d = dim_of(op, letter)
    return 1 if d is None else op.space.dims[d].size


def split(op: Op, cuts: Mapping[int, Cuts], devices: Sequence[int]) -> Grid:
    """A grid that is cut along some dimensions, row by row on the devices."""
    return Grid(
        tuple(cuts.get(d, (0, dim.size)) for d, dim in enumerate(op.space.dims)), tuple(devices)
    )


def copies(op: Op, devices: Sequence[int]) -> Grid:
    """Not split; a copy on each device."""
    return whole_tiling([dim.size for dim in op.space.dims], devices)


def copies_unless_opaque(op: Op, devices: Sequence[int]) -> Grid:
    """A copy on each device; of what is opaque one alone, for it may be random and copies could differ."""
    return copies(op, devices[:1] if op.opaque else devices)


def batch_independent(graph: Graph) -> set[str]:
    """The operators that depend on no sample: their results are the same whatever the batch holds."""
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
    """The operators of a graph that depend on no sample, and who reads them."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, batch_independent(graph)
        self.readers: dict[str, list[tuple[Op, int]]] = {}
        for op in graph.ops:
            for operand, name in enumerate(op.inputs):
                self.readers.setdefault(name, []).append((op, operand))

    def read_by(self, names: Iterable[str]) -> tuple[Op, ...]:
        """Those that operators of the given names read, by way of others too; the last ones first."""
        reader_names, ops_read = set(names), []
        for op in reversed(self.graph.ops):
            reads = any(
                r.name in reader_names for o in op.outputs for r, _ in self.readers.get(o, ())
            )
            if op.name in self.names and reads:
                ops_read.append(op)
                reader_names.add(op.name)
        return tuple(ops_read)

    def place(self, ops: Iterable[Op], tiles: Mapping[str, Tiling]) -> Tiles:
        """Tiles of some of them where they are read; readers come before what they read."""
        placed: Tiles = {}
        for op in ops:
            grids = [
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
    """Adds tiles for the operators that depend on no sample; `unread` places what nobody reads."""
    independent = BatchIndependentOps(graph)
    ops = [op for op in reversed(graph.ops) if op.name in independent.names]
    for op in ops:
        tiles.update(independent.place([op], tiles) or {op.name: place_unread(op)})


def _grid_as_read(op: Op, output: int, reader: Op, operand: int, tiling: Tiling) -> Grid:
    """A reader's grid as one of what it reads, or copies where its tiles share elements."""
    whole_everywhere = copies(op, sorted(set(tiling.devices)))
    if not isinstance(tiling, Grid) or tiling.copies > 1:
        return whole_everywhere
    dims = {  # dimension of the reader -> dimension of the operator
        index.plain_dim: op.space.outputs[output][at]
        for at, index in enumerate(reader.space.operands[operand].indices)
        if index.plain_dim is not None
    }
    cut_dims = [r for r, parts in enumerate(tiling.parts) if parts > 1]
    op_dims = [dims.get(r, -1) for r in cut_dims]
    splittable = all(d >= 0 and not op.space.dims[d].unsplittable for d in op_dims)
    if not splittable or op_dims != sorted(op_dims):  # the devices stand in row-major order
        return whole_everywhere
    return split(
        op, {d: tiling.cuts[r] for d, r in zip(op_dims, cut_dims, strict=True)}, tiling.devices
    )


def _common_grid(op: Op, grids: Sequence[Grid]) -> Grid:
    if all(grid == grids[0] for grid in grids):
        grid = grids[0]
    else:
        grid = copies(op, sorted({d for g in grids for d in g.devices}))
    return copies_unless_opaque(op, grid.devices) if op.opaque else grid
