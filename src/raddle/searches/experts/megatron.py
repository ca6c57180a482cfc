"""Megatron's tensor parallelism: linear layers split alternately by their outputs and by their inputs.

Shoeybi et al., Megatron-LM (arXiv 1909.08053), section 3. A *column* layer is split by its output features;
what follows it, such as attention heads or an activation function, is split in the same way; a *row* layer
is split by its input features and gives partial sums. The embedding and the last layer are split by the
vocabulary, and so is the loss. With sequence parallelism (Korthikanti et al., arXiv 2205.05198) all other
operators are split by the sequence, else they are copied. Samples are split over the other devices.

Differs from the papers: the layers are found from the structure of the graph. A linear layer is a row layer
if all that it reads comes from column layers, else a column layer. A layer that computes queries, keys and
values together is cut between heads, so a device may have several tiles of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.box import Box, disjoint
from raddle.graph.graph import Graph, Op
from raddle.graph.space import Space
from raddle.plans.regions import operand_regions
from raddle.plans.tiling import Irregular, Tile, Tiling
from raddle.searches.baselines.data import sample_cuts
from raddle.searches.experts.mesh import Mesh
from raddle.searches.grids import (
    Tiles,
    all_devices,
    batch_independent,
    copies,
    place_batch_independent,
    size_of,
)


class Roles(NamedTuple):
    """The operators of a graph by their part in tensor parallelism, by name; all others are residual."""

    columns: set[str]  # linear layers that are split by their outputs
    rows: set[str]  # linear layers that are split by their inputs
    inside: set[str]  # operators that read only what column layers have computed
    heads: dict[str, int]  # by operator between the layers of an attention, the number of its heads


def megatron(graph: Graph, cluster: Cluster, tensor: int, *, sequence: bool) -> Tiles:
    """Returns the tiles with layers split over `tensor` devices, and samples over the others.

    sequence: residual operators are split by the sequence, instead of copied. Raises InputError if the
    graph has no row layers, or too few attention heads or samples.
    """
    devices = all_devices(cluster)
    roles = find_roles(graph)
    _check(graph, roles, tensor)
    sample_cuts(graph, len(devices) // tensor)  # raises InputError for too few samples
    mesh = Mesh(graph.batch, len(devices) // tensor, tensor)
    tiles: Tiles = {
        op.name: _tiling(op, mesh, roles, sequence=sequence)
        for op in graph.ops
        if op.name not in roles.columns
    }
    # Column layers last: their cuts are those of the operators that read them.
    consumers: dict[str, list[tuple[Op, int]]] = {}
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            consumers.setdefault(name, []).append((op, operand))
    for op in reversed(graph.ops):
        if op.name in roles.columns:
            tiles[op.name] = _column_tiling(op, mesh, tiles, consumers)
    place_batch_independent(graph, tiles, lambda op: copies(op, devices))
    return tiles


def find_roles(graph: Graph) -> Roles:
    """Returns the roles of the operators, found from the structure of the graph."""
    columns, rows, inside = set[str](), set[str](), set[str]()
    independent = batch_independent(graph)
    # By value, the linear layers (or other operators with a weight) from which it is computed.
    sources: dict[str, frozenset[str]] = {}
    sources_of: dict[str, frozenset[str]] = {}  # the same by operator, for what it reads
    heads_of: dict[str, int] = {}  # by column layer that an attention reads, the number of heads
    for op in graph.ops:
        if op.name in independent:
            continue
        read = frozenset[str]().union(*(sources.get(i, frozenset()) for i in op.inputs))
        from_columns = bool(read) and read <= columns
        sources_of[op.name] = read
        if op.kind == "attention" and from_columns:
            heads_of.update(dict.fromkeys(read, size_of(op, "c")))
        if _is_linear(op):
            (rows if from_columns else columns).add(op.name)
        elif from_columns:
            inside.add(op.name)
        starts_here = _is_linear(op) or not read or op.kind.startswith(("conv", "embedding"))
        sources.update(dict.fromkeys(op.outputs, frozenset([op.name]) if starts_here else read))
    heads = {
        name: next(heads_of[source] for source in sorted(read) if source in heads_of)
        for name, read in sources_of.items()
        if name in rows | inside and not read.isdisjoint(heads_of)
    }
    return Roles(columns, rows, inside, heads)


def _is_linear(op: Op) -> bool:
    return op.kind == "linear" and not op.composite_kind


def _check(graph: Graph, roles: Roles, tensor: int) -> None:
    """Raises InputError if tensor parallelism makes no sense for the graph, or not for so many devices."""
    if not roles.rows or any(op.kind.startswith("conv") for op in graph.ops):
        raise InputError(
            f"megatron splits the linear layers of transformer blocks, and '{graph.name}' has none: use "
            "owt or auto."
        )
    heads = [size_of(op, "c") for op in graph.ops if op.kind == "attention"]
    if heads and min(heads) < tensor:
        raise InputError(
            f"megatron cannot split {min(heads)} attention heads over {tensor} devices: "
            "use a cluster with fewer devices."
        )


def _tiling(op: Op, mesh: Mesh, roles: Roles, *, sequence: bool) -> Tiling:
    """Returns the tiling of an operator that is no column layer."""
    heads = roles.heads.get(op.name, 1)
    if op.name in roles.rows:
        return mesh.split(op, "k", heads) or mesh.copied(op)
    if op.name in roles.inside:
        # Without channels (what follows a loss over the vocabulary): the samples over all devices.
        return mesh.split(op, "c", heads) or mesh.all_samples(op) or mesh.copied(op)
    if op.kind == "embedding":
        return mesh.split(op, "v") or mesh.copied(op)
    return (mesh.split(op, "t") if sequence else None) or mesh.copied(op)


def _column_tiling(
    op: Op, mesh: Mesh, tiles: Mapping[str, Tiling], consumers: Mapping[str, list[tuple[Op, int]]]
) -> Tiling:
    """Returns c / tensor; or the boxes that its readers need, if these are a partition of the output."""
    even = mesh.split(op, "c") or mesh.copied(op)
    if len({reader.name for reader, _ in consumers.get(op.outputs[0], [])}) < 2:
        return even
    output = op.space.outputs[0]  # by dimension of the result, the dimension of the operator
    needed: list[Tile] = []
    for reader, operand in consumers.get(op.outputs[0], []):
        for device, region in operand_regions(reader, operand, tiles[reader.name]):
            if region is not None:
                lo, hi = [0] * len(op.space.dims), [dim.size for dim in op.space.dims]
                for p, d in enumerate(output):
                    lo[d], hi[d] = region.lo[p], region.hi[p]
                needed.append(Tile(Box(tuple(lo), tuple(hi)), device))
    # Equal layers have equal tiles: whether these are a partition is worked out once.
    return _partition(op.space, tuple(needed)) or even


@lru_cache(maxsize=256)
def _partition(space: Space, needed: tuple[Tile, ...]) -> Tiling | None:
    """Returns the tiles as a tiling if they cover the space, each element once; else None."""
    boxes = [tile.box for tile in needed]
    if sum(box.volume for box in boxes) != space.full.volume or not disjoint(boxes):
        return None
    return Irregular(tuple(sorted(needed, key=lambda tile: (tile.device, tile.box.lo))))
