"""Context parallelism: the sequence is split over devices, samples over the others.

Liu et al., Ring attention (arXiv 2310.01889), and Megatron's context parallelism split every operator by
the sequence. Differs from both: keys and values are gathered before attention, not passed around a ring.
"""

from __future__ import annotations

from itertools import pairwise

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling
from raddle.searches.baselines.data import sample_cuts
from raddle.searches.experts.mesh import Mesh
from raddle.searches.grids import (
    Tiles,
    all_devices,
    copies,
    dim_of,
    place_batch_independent,
    size_of,
)


def context(graph: Graph, cluster: Cluster, parts: int) -> Tiles:
    """Returns the tiles with the sequence in `parts` parts, and the samples over the other devices.

    Raises InputError if the graph has no sequence of which every operator could have a part.
    """
    devices = all_devices(cluster)
    sequence = max(
        (size_of(op, "t") for op in graph.ops if op.kind in ("attention", "linear")), default=1
    )
    if sequence < parts:
        raise InputError(
            f"context splits the sequence of a transformer, and '{graph.name}' has none of {parts} tokens "
            "or more: use data or auto."
        )
    sample_cuts(graph, len(devices) // parts)  # raises InputError for too few samples
    mesh = Mesh(graph.batch, len(devices) // parts, parts)
    tiles: Tiles = {op.name: _tiling(op, mesh, sequence) for op in graph.ops}
    place_batch_independent(graph, tiles, lambda op: copies(op, devices))
    return tiles


def _tiling(op: Op, mesh: Mesh, sequence: int) -> Tiling:
    """Returns the tiling of one operator."""
    by_sequence = mesh.split(op, "t")
    if by_sequence is not None:
        return by_sequence
    n = dim_of(op, "n")
    if n is not None and op.space.dims[n].size == mesh.batch * sequence and not op.opaque:
        return _tokens(op, n, mesh, sequence)
    return mesh.copied(op)


def _tokens(op: Op, n: int, mesh: Mesh, sequence: int) -> Tiling:
    """Returns tiles where samples and tokens are one dimension: a device has its tokens of every sample."""
    token_cuts = [-(-sequence * i // mesh.inner) for i in range(mesh.inner + 1)]
    cuts = mesh.sample_cuts(op)
    assert cuts is not None
    points, devices = [0], list[int]()
    for row, (first, last) in enumerate(pairwise(cuts)):
        for start in range(first, last, sequence):
            points += [start + cut for cut in token_cuts[1:]]
            devices += range(row * mesh.inner, (row + 1) * mesh.inner)
    grid = Grid(
        tuple(tuple(points) if k == n else (0, x.size) for k, x in enumerate(op.space.dims)),
        tuple(devices),
    )
    if len(devices) == len(mesh.devices):  # one sample in each row of the mesh
        return grid
    return Irregular(tuple(Tile(Box(t.box.lo, t.box.hi), t.device) for t in grid.tiles))
