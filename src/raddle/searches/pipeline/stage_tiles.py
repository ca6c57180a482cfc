"""Tiles the operators of a pipeline stage on the devices of the stage, by the rule of a baseline."""

from __future__ import annotations

from dataclasses import replace

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling
from raddle.searches.baselines.data import data
from raddle.searches.baselines.model import owt
from raddle.searches.baselines.spatial import spatial
from raddle.searches.grids import batch_independent, copies, copies_unless_opaque
from raddle.searches.starts import BaselineFunction, first_devices

STAGE_METHODS: dict[str, BaselineFunction] = {"data": data, "spatial": spatial, "owt": owt}


def stage_tiles(
    graph: Graph,
    cluster: Cluster,
    op_names: set[str],
    devices: tuple[int, ...],
    tile: BaselineFunction,
) -> dict[str, Tiling]:
    """Return the tiling of each operator of a stage, as `tile` gives it for that many devices."""
    if len(devices) == 1:
        return {op.name: copies(op, devices) for op in graph.ops if op.name in op_names}
    # Tiled on as many devices from the start of the cluster, then moved to those of the stage.
    all_tiles = tile(graph, first_devices(cluster, len(devices)))
    independent_ops = batch_independent(graph)
    tiles: dict[str, Tiling] = {}
    for op in (op for op in graph.ops if op.name in op_names):
        # `tile` places operators that depend on no sample, such as a causal mask, on all devices that
        # read them. Here other stages may read them too, but an operator may only use devices of its own
        # stage.
        tiles[op.name] = (
            copies_unless_opaque(op, devices)
            if op.name in independent_ops
            else _move_to_devices(all_tiles[op.name], devices)
        )
    return tiles


def _move_to_devices(tiling: Tiling, devices: tuple[int, ...]) -> Tiling:
    """Return the tiling, a regular grid or a list of tiles, with device d replaced by devices[d]."""
    if isinstance(tiling, Grid):
        return replace(tiling, devices=tuple(devices[d] for d in tiling.devices))
    return Irregular(tuple(Tile(t.box, devices[t.device]) for t in tiling.tiles))
