"""Makes a plan for each row of Table 5.15 of the thesis (B. Eserol, docs/papers.md), and for other rows.

A row is a kind of parallelism: a method that makes tiles, a sync kind, and a schedule. hypergraph-coarse
gives each filter to one device; hypergraph-mixed lets each layer choose what it splits;
filter-incremental fills one device after the other with filters, layer by layer.
"""

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

# labels of rows that Table 5.15 does not have
DDP, SERIAL_COARSE = "DDP", "coarse hypergraph, step by step"
MIXED, AUTO_ROW = "hypergraph-mixed", "auto"
THREADED = "threaded:4:greedy"  # four steps in flight; each device runs what is ready


class RowSettings(NamedTuple):
    """The settings from which the plan of a row is made."""

    method: str
    sync: str = "allreduce"  # sync kind; AUTO: the search chooses it
    schedule: str = ""  # "": one step after the other


# sync: ps:one has one server, ps:distributed,greedy assigns parameters to servers on all hosts
ROWS: Mapping[str, RowSettings] = {
    LAYERS: RowSettings("layerwise", schedule=THREADED),
    FILTERS: RowSettings("filter-incremental", schedule=THREADED),
    COARSE: RowSettings("hypergraph-coarse", schedule=THREADED),
    SERIAL_COARSE: RowSettings("hypergraph-coarse"),
    ASYNC_ONE: RowSettings("data", "ps:one,async"),
    SYNC_ONE: RowSettings("data", "ps:one"),
    ASYNC_ALL: RowSettings("data", "ps:distributed,greedy,async"),
    SYNC_ALL: RowSettings("data", "ps:distributed,greedy"),
    DDP: RowSettings("data"),
    MIXED: RowSettings("hypergraph-mixed"),
    AUTO_ROW: RowSettings("auto", AUTO),
}


def plans_by_row(graph: Graph, cluster: Cluster, *, budget: float) -> dict[str, Plan]:
    """Returns the plan of each row, by label.

    Rows with the same method share tiles; sync kind and schedule differ.
    """
    if len(cluster.devices) == 1:
        return {SINGLE: plan_for(graph, cluster, "data", sync="allreduce", optimizer="momentum")}
    plan_of_method: dict[str, Plan] = {}
    plans: dict[str, Plan] = {}  # by label of a row
    for label, settings in ROWS.items():
        if settings.method not in plan_of_method:
            plan_of_method[settings.method] = plan_for(
                graph, cluster, settings.method, sync=_search_sync(settings), budget=budget,
                optimizer="momentum",
            )  # fmt: skip
        plans[label] = plan_of_method[settings.method]
        if settings.sync != AUTO:
            plans[label] = replace(plans[label], sync=settings.sync, schedule=settings.schedule)
    return plans


def _search_sync(settings: RowSettings) -> str:
    """Returns the sync kind for the search; that of the row replaces it afterwards."""
    return AUTO if settings.sync == AUTO else "allreduce"


def plan_or_ddp(label: str, plan: Plan) -> Plan | DdpBaseline:
    """Returns torch's DDP for the DDP row (which is predicted by its plan), else the plan."""
    return DdpBaseline() if label == DDP else plan
