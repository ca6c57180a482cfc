"""Data parallelism with ZeRO, under the names that PyTorch and DeepSpeed gave it: fsdp, zero2 and hsdp."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.sync import read_sync
from raddle.searches.baselines.data import data
from raddle.searches.nodes import devices_per_node
from raddle.searches.plan_space import PlanSpace
from raddle.searches.settings import AUTO, SearchResult, Settings


def hsdp_sync(cluster: Cluster) -> str:
    """Returns the sync kind with the devices of a node as a group; raises InputError if there is none."""
    group_size = devices_per_node(cluster)
    if not group_size:
        raise InputError(
            f"hsdp shards within each of several nodes with equally many devices, two or more, which "
            f"'{cluster.name}' does not have: use fsdp."
        )
    return f"sharded:parameters,group={group_size}"


# By method: the sync kind, which may depend on the cluster.
SYNC_KINDS: Mapping[str, Callable[[Cluster], str]] = {
    "fsdp": lambda cluster: "sharded:parameters",
    "zero2": lambda cluster: "sharded",
    "hsdp": hsdp_sync,
}


def sharded_data(method: str, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """Returns data parallelism with the sync kind of the method, which the user may not contradict."""
    sync = SYNC_KINDS[method](cluster)
    if settings.sync != AUTO and read_sync(settings.sync) != read_sync(sync):
        raise InputError(
            f"'{method}' synchronises by {sync}, not by {settings.sync}: leave --sync out, or use the "
            "method data."
        )
    tiles = data(graph, cluster)
    if settings.pins:
        tiles = PlanSpace(graph, cluster, settings).with_pins(tiles)
    return SearchResult(tiles, sync=sync, sync_is_needed=True)
