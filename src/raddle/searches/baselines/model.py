"""Model parallelism inside of layers: every device has an equal share of each layer's filters.

One weird trick (Krizhevsky, arXiv 1404.5997) is data parallel where the convolutions are, and model
parallel where the fully connected layers are. Differs from the paper: the fully connected part takes the
whole batch at once, its scheme (a), and not one device's samples after the other's.
"""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Tiling, even_cuts
from raddle.searches.baselines.data import sample_cuts, split_by_sample
from raddle.searches.grids import (
    Tiles,
    all_devices,
    batch_independent,
    copies,
    dim_of,
    place_batch_independent,
    split,
)


def model(graph: Graph, cluster: Cluster) -> Tiles:
    """Every operator c/N; what has no channels is on device 0."""
    devices = all_devices(cluster)
    tiles: Tiles = {op.name: split_by_channel(op, devices) for op in graph.ops}
    place_batch_independent(graph, tiles, lambda op: copies(op, devices))
    return tiles


def split_by_channel(op: Op, devices: tuple[int, ...]) -> Tiling:
    """c/N, or in as many parts as there are channels."""
    c = dim_of(op, "c")
    if c is None:
        return copies(op, devices[:1])
    parts = min(len(devices), op.space.dims[c].size)
    return split(op, {c: even_cuts(op.space.dims[c].size, parts)}, devices[:parts])


def owt(graph: Graph, cluster: Cluster) -> Tiles:
    """Convolutions n/N, fully connected layers and the loss after them c/N."""
    devices = all_devices(cluster)
    cuts = sample_cuts(graph, len(devices))
    connected = fully_connected(graph)
    tiles: Tiles = {
        op.name: split_by_channel(op, devices)
        if op.name in connected
        else split_by_sample(op, cuts, devices)
        for op in graph.ops
    }
    place_batch_independent(graph, tiles, lambda op: copies(op, devices))
    return tiles


def fully_connected(graph: Graph) -> set[str]:
    """Linear layers on one vector a sample, and what depends on such layers alone."""
    connected: set[str] = set()
    independent = batch_independent(graph)
    producer = {output: op.name for op in graph.ops for output in op.outputs}
    for op in graph.ops:
        if op.name in independent:
            continue
        made_by = {producer[i] for i in op.inputs if i in producer} - independent
        vectors = "".join(dim.name for dim in op.space.dims) == "nck" and not op.composite_kind
        if (op.kind == "linear" and vectors) or (made_by and made_by <= connected):
            connected.add(op.name)
    return connected
