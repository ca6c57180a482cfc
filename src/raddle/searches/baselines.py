"""The named baselines: what people do without a search, each a function from graph and cluster to tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plan.plan import (
    STATISTICS,
    SYNCS,
    Plan,
    describe_inputs,
    parameter_shapes,
    validate,
)
from raddle.searches import filters
from raddle.searches.data import data
from raddle.searches.layerwise import layerwise
from raddle.searches.model import model, owt
from raddle.searches.placing import Tiles
from raddle.searches.recomputing import blocks
from raddle.searches.spatial import spatial

METHODS: dict[str, Callable[[Graph, Cluster], Tiles]] = {
    "data": data,
    "model": model,
    "owt": owt,
    "layerwise": layerwise,
    "spatial": spatial,
    "filter-horizontal": filters.horizontal,
    "filter-incremental": filters.incremental,
    "channel-incremental": filters.channel_incremental,
}


def plan_for(
    graph: Graph,
    cluster: Cluster,
    method: str,
    *,
    model: str = "",
    batch: int | None = None,
    bn: str = "local",
    sync: str = "allreduce",
    optimizer: str = "sgd",
    recompute: int | None = None,
) -> Plan:
    """The plan of a method for all devices of a cluster.

    `model` is the name to load it by again; `batch` is the global batch, the graph's where none is given.
    `recompute` keeps values for the backward only at the borders of so many blocks.
    """
    check_settings([method], bn=bn, sync=sync)
    plan = Plan(
        METHODS[method](graph, cluster),
        len(cluster.devices),
        bn=bn,
        sync=sync,
        model=model or graph.name,
        fingerprint=graph.fingerprint(),
        batch=graph.batch if batch is None else batch,
        dtype=_dtype(graph),
        optimizer=optimizer,
        cluster=cluster.to_dict(),
        method=method,
        recompute=() if recompute is None else blocks(graph, recompute),
        inputs=describe_inputs(graph),
        parameters=parameter_shapes(graph),
    )
    validate(plan, graph)
    return plan


def check_settings(methods: Sequence[str], *, bn: str, sync: str) -> None:
    """Raises InputError for a method or setting that does not exist, before anything is captured."""
    for name in methods:
        if name not in METHODS:
            close = get_close_matches(name, METHODS, n=3, cutoff=0.5) or list(METHODS)
            raise InputError(f"no method '{name}': choose {' or '.join(close)}.")
    if bn not in STATISTICS:
        raise InputError(f"bn is '{bn}': choose {' or '.join(STATISTICS)}.")
    if sync not in SYNCS:
        raise InputError(f"sync is '{sync}': choose {' or '.join(SYNCS)}.")


def _dtype(graph: Graph) -> str:
    """Of the parameters."""
    dtypes = [p.dtype for p in graph.parameters] or [v.dtype for v in graph.values.values()]
    return str(dtypes[0]).removeprefix("torch.")
