"""Model parallelism inside of layers (`model`), and one weird trick (`owt`).

`model`: every device has an equal share of each layer's filters (c/N: channels in N parts).
`owt` (Krizhevsky, arXiv 1404.5997): convolutions are data parallel (n/N) and fully connected layers model
parallel. Differs from the paper: of its three schemes for the fully connected layers only (a) is here, in
which they take the whole batch at once. In (b) and (c) they take one part of the batch after the other.
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
    """Returns tiles that split every operator c/N; operators without channels are on device 0."""
    devices = all_devices(cluster)
    tiles: Tiles = {op.name: split_by_channel(op, devices) for op in graph.ops}
    # Operators that read only parameters, buffers and constants: on the devices that read their results or,
    # if nothing reads them, copied on every device.
    place_batch_independent(graph, tiles, lambda op: copies(op, devices))
    return tiles


def split_by_channel(op: Op, devices: tuple[int, ...]) -> Tiling:
    """Returns c/N, or as many parts as there are channels; without channels, a tile on the first device."""
    c = dim_of(op, "c")
    if c is None:
        return copies(op, devices[:1])
    parts = min(len(devices), op.space.dims[c].size)
    return split(op, {c: even_cuts(op.space.dims[c].size, parts)}, devices[:parts])


def owt(graph: Graph, cluster: Cluster) -> Tiles:
    """Returns tiles: fully connected layers and the loss after them are split c/N, other operators n/N."""
    devices = all_devices(cluster)
    cuts = sample_cuts(graph, len(devices))
    connected = fully_connected(graph)
    tiles: Tiles = {
        op.name: split_by_channel(op, devices)
        if op.name in connected
        else split_by_sample(op, cuts, devices)
        for op in graph.ops
    }
    # As in `model`: operators that read only parameters, buffers and constants.
    place_batch_independent(graph, tiles, lambda op: copies(op, devices))
    return tiles


def fully_connected(graph: Graph) -> set[str]:
    """Returns names of linear layers on one vector per sample, and of operators that read only these."""
    connected: set[str] = set()
    independent = batch_independent(graph)
    producer = {output: op.name for op in graph.ops for output in op.outputs}
    for op in graph.ops:
        if op.name in independent:
            continue
        made_by = {producer[i] for i in op.inputs if i in producer} - independent
        # n samples, c output features, k input features, and no tokens or images
        on_vectors = "".join(dim.name for dim in op.space.dims) == "nck" and not op.composite_kind
        if (op.kind == "linear" and on_vectors) or (made_by and made_by <= connected):
            connected.add(op.name)
    return connected
