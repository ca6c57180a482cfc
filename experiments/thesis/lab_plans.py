"""The rows of Table 5.15 as plans, and those that the thesis does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from experiments.thesis.lab_table import (
    ASYNC_ALL,
    ASYNC_ONE,
    COARSE,
    FILTERS,
    LAYERS,
    SINGLE,
    SYNC_ALL,
    SYNC_ONE,
)
from experiments.timing import DdpBaseline
from raddle.api.clusters import Cluster
from raddle.api.models import Graph
from raddle.api.planning import AUTO, plan_for
from raddle.api.plans import Plan

DDP, SERIAL_COARSE = "DDP", "coarse hypergraph, step by step"
MIXED, FOUND = "hypergraph-mixed", "auto"
THREADED = "threaded:4:greedy"  # four batches under way, whichever is ready goes on


class Kind(NamedTuple):
    method: str
    sync: str = "allreduce"
    schedule: str = ""


KINDS: Mapping[str, Kind] = {
    LAYERS: Kind("layerwise", schedule=THREADED),
    FILTERS: Kind("filter-incremental", schedule=THREADED),
    COARSE: Kind("hypergraph-coarse", schedule=THREADED),
    SERIAL_COARSE: Kind("hypergraph-coarse"),
    ASYNC_ONE: Kind("data", "ps:one,async"),
    SYNC_ONE: Kind("data", "ps:one"),
    ASYNC_ALL: Kind("data", "ps:distributed,greedy,async"),
    SYNC_ALL: Kind("data", "ps:distributed,greedy"),
    DDP: Kind("data"),
    MIXED: Kind("hypergraph-mixed"),
    FOUND: Kind("auto", AUTO),
}


def plans(graph: Graph, cluster: Cluster, *, budget: float) -> dict[str, Plan]:
    """By row; what differs only in how parameters agree, or in its schedule, has the same tiles."""
    if len(cluster.devices) == 1:
        return {SINGLE: plan_for(graph, cluster, "data", sync="allreduce")}
    made: dict[str, Plan] = {}
    found: dict[str, Plan] = {}
    for label, kind in KINDS.items():
        if kind.method not in made:
            made[kind.method] = plan_for(
                graph, cluster, kind.method, sync=_asked(kind), budget=budget
            )
        found[label] = made[kind.method]
        if kind.sync != AUTO:
            found[label] = replace(found[label], sync=kind.sync, schedule=kind.schedule)
    return found


def _asked(kind: Kind) -> str:
    return AUTO if kind.sync == AUTO else "allreduce"


def as_run(label: str, plan: Plan) -> Plan | DdpBaseline:
    """DDP is torch's own; its prediction is that of the plan."""
    return DdpBaseline() if label == DDP else plan
