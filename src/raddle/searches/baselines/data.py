"""Data parallelism: every device has all parameters and an equal share of the samples.

n/N means: the samples (dimension n) are split into one part for each of the N devices.
"""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Tiling, even_cuts
from raddle.program.replicated_loss import MOST_REPLICAS
from raddle.searches.grids import (
    Cuts,
    Tiles,
    all_devices,
    copies,
    dim_of,
    place_batch_independent,
    split,
)


def data(graph: Graph, cluster: Cluster) -> Tiles:
    """Returns tiles that split every operator n/N; operators without samples: see split_by_sample."""
    devices = all_devices(cluster)
    cuts = sample_cuts(graph, len(devices))
    tiles: Tiles = {op.name: split_by_sample(op, cuts, devices) for op in graph.ops}
    # Operators that read only parameters, buffers and constants get other tiles: they are computed on the
    # devices that read their results (grids.py) or, if nothing reads them, copied on every device.
    place_batch_independent(graph, tiles, lambda op: copies(op, devices))
    return tiles


def sample_cuts(graph: Graph, parts: int) -> Cuts:
    """Returns the cut points of the batch in equal parts. Raises InputError for too few samples."""
    if graph.batch < parts:
        raise InputError(
            f"a batch of {graph.batch} cannot be split over {parts} devices: "
            f"ask for --batch {parts} or more, or for fewer devices."
        )
    return even_cuts(graph.batch, parts)


def split_by_sample(op: Op, cuts: Cuts, devices: tuple[int, ...]) -> Tiling:
    """Returns n/N for an operator with samples; else a copy on each device, or on the first device only.

    There are copies on all devices if the operator updates a buffer (running statistics), or if there are
    at most MOST_REPLICAS (8) devices and the operator is not opaque. cuts: cut points of the batch.
    """
    n = dim_of(op, "n")
    # cuts[-1]: the number of samples of the batch
    if n is not None and op.space.dims[n].size % cuts[-1] == 0:
        each = op.space.dims[n].size // cuts[-1]  # after a reshape, n may be samples times tokens
        return split(op, {n: tuple(each * cut for cut in cuts)}, devices)
    if n is not None and op.space.dims[n].size >= len(devices):
        return split(op, {n: even_cuts(op.space.dims[n].size, len(devices))}, devices)
    copy_on_all = op.traits.updates_buffer or (len(devices) <= MOST_REPLICAS and not op.opaque)
    return copies(op, devices if copy_on_all else devices[:1])
