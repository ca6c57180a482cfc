"""Spatial parallelism: images are cut along height and width; devices exchange the halos of their parts.

A halo is the border of a part that the neighbouring parts read too.
"""

from __future__ import annotations

import math

from raddle.clusters import Cluster
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Tiling, even_cuts
from raddle.searches.baselines.data import split_by_sample
from raddle.searches.grids import Tiles, all_devices, copies, dim_of, place_batch_independent, split


def spatial(graph: Graph, cluster: Cluster) -> Tiles:
    """Returns tiles that split operators on images h/A w/B, on A * B devices.

    The height is in A parts, the width in B parts. A and B are as equal as possible. Operators without
    images, or with too small ones, are split by sample (n/N, see split_by_sample) if there are enough
    samples; else they are on device 0 or, if they update a buffer, copied on all devices.
    """
    devices = all_devices(cluster)
    tiles: Tiles = {op.name: _tile(graph, op, devices) for op in graph.ops}
    # Operators that read only parameters, buffers and constants: on the devices that read their results.
    place_batch_independent(graph, tiles, lambda op: copies(op, devices))
    return tiles


def _tile(graph: Graph, op: Op, devices: tuple[int, ...]) -> Tiling:
    """Returns the tiling of one operator."""
    rows, columns = _factors(len(devices))
    h, w = dim_of(op, "h"), dim_of(op, "w")
    if h is not None and w is not None:
        height, width = op.space.dims[h].size, op.space.dims[w].size
        if height >= rows and width >= columns:
            cuts = {h: even_cuts(height, rows), w: even_cuts(width, columns)}
            return split(op, cuts, devices)
    if graph.batch >= len(devices):
        return split_by_sample(op, even_cuts(graph.batch, len(devices)), devices)
    return copies(op, devices if op.traits.updates_buffer else devices[:1])


def _factors(count: int) -> tuple[int, int]:
    """Returns two factors of `count` that are as equal as possible, the larger first."""
    small = next(a for a in range(math.isqrt(count), 0, -1) if count % a == 0)
    return count // small, small
