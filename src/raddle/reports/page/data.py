"""Collects the data of the HTML page of `raddle report`, plan by plan.

The data are JSON data, and columns of numbers that the JSON refers to (columns.py).

The page opens with one plan: the first plan of the user, or else the fastest that fits into memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.notation import write_tiles
from raddle.plans.plan import Plan
from raddle.plans.plan_file import to_dict
from raddle.reports.explanation import BOUND_REASONS, sentences
from raddle.reports.page.alternatives import describe_alternatives
from raddle.reports.page.columns import Columns
from raddle.reports.page.curves import describe_memory
from raddle.reports.page.measured_run import describe_run
from raddle.reports.page.network import describe_network, describe_tiles
from raddle.reports.page.slices import describe_timeline, operator_numbers
from raddle.reports.page.traffic import describe_traffic, describe_work
from raddle.searches.comparison import add_speedups
from raddle.searches.explanation.explain_plan import explain_timeline
from raddle.searches.predict import METRICS
from raddle.simulation.timeline import Timeline
from raddle.version import __version__

FORMAT = 1  # version of the layout of the data

# Takes {"step": the present activity, "done": 2, "of": 5}: 2 of 5 units of work are finished.
OnProgress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Entry:
    """A simulated plan with its predicted metrics, or a method that could not be applied (plan is None)."""

    label: str  # name of the method or of the plan, on the page
    row: dict[str, Any]  # the metrics (keys: METRICS of searches/predict.py), or an "error"
    plan: Plan | None = None
    timeline: Timeline | None = None
    run: Mapping[str, Any] | None = None  # the measured run of the plan, of measured_run.read_run
    from_user: bool = False  # a plan file of the user; the page opens with the first such plan


@dataclass(frozen=True)
class PageData:
    """The data of a page: JSON data, and the block of columns that it refers to."""

    json_data: dict[str, Any]
    columns: bytes


def describe_entries(
    graph: Graph,
    cluster: Cluster,
    entries: Iterable[Entry],
    *,
    model: str = "",
    profile: Profile | None = None,
    alternatives: float = 0.0,
    on_progress: OnProgress = lambda step: None,
) -> PageData:
    """Describe entries for the page.

    entries: read one by one, to hold few timelines in memory. model: its name on the page. profile:
    measured times of operators. alternatives: seconds to spend on other splits of the layers of the plan
    that the page opens with. docs/page.md lists the keys of the JSON data.
    """
    columns = Columns()
    ops = operator_numbers(graph)
    data_timeline: Timeline | None = None  # of data parallelism
    best: int | None = None  # number of the fastest entry that fits
    # The plan that the page opens with: number, plan, timeline, whether it is the user's.
    opened: tuple[int, Plan, Timeline, bool] | None = None
    methods: list[dict[str, Any]] = []
    for number, entry in enumerate(entries):
        method = _entry_row(entry)
        if entry.plan is not None and entry.timeline is not None:
            if entry.label == "data":
                data_timeline = entry.timeline
            method |= _describe_plan(
                graph, entry.plan, entry.timeline, columns, profile, data_timeline
            )
            if entry.run is not None:
                method["measured"] = describe_run(entry.run, ops, columns)
            if entry.row["fits"] and (best is None or _is_faster(method, methods[best])):
                best = number
            user_plan_opens = opened is not None and opened[3]
            if not user_plan_opens and (entry.from_user or best == number):
                opened = number, entry.plan, entry.timeline, entry.from_user
        methods.append(method)
    # Speedups over the entry "data", for plans with its batch. Others keep the speedup of `_describe_plan`:
    # over data parallelism at their batch.
    add_speedups([m for m in methods if m.get("batch", graph.batch) == graph.batch])
    if opened is not None:
        number, plan, timeline, _ = opened
        groups = describe_alternatives(plan, timeline, profile, alternatives, on_progress)
        methods[number]["groups"] = groups
    json_data = {
        "raddle": __version__,
        "format": FORMAT,
        "model": model or graph.name,
        "batch": graph.batch,
        "cluster": _describe_cluster(cluster),
        "network": describe_network(graph),
        "best": _fastest_or_first(methods) if best is None else best,
        "opens": _fastest_or_first(methods) if opened is None else opened[0],
        "methods": methods,
    }
    return PageData(json_data, columns.tobytes())


def _is_faster(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether a method's plan trains more samples per second than another's."""
    return bool(one["samples_per_s"] > other["samples_per_s"])


def _fastest_or_first(methods: list[dict[str, Any]]) -> int:
    """Return the number of the fastest plan, whether it fits or not; 0 if there is no plan."""
    timed = [m for m in range(len(methods)) if methods[m]["step_ms"] is not None]
    return max(timed, key=lambda m: methods[m]["samples_per_s"], default=0)


def _entry_row(entry: Entry) -> dict[str, Any]:
    """Return the data that the page has of every entry, also of one without a plan."""
    # bn: the samples over which batch norm takes its statistics, such as "local" (each device's own).
    row = entry.row
    return {
        "label": entry.label,
        **{
            key: row.get(key)
            for key in (
                "method",
                *METRICS,
                "bn",
                "sync",
                "precision",
                "optimizer",
                "lower_bound_ms",
                "error",
            )
        },
        "measured": None,
        "groups": [],
    }


def _describe_plan(
    graph: Graph,
    plan: Plan,
    timeline: Timeline,
    columns: Columns,
    profile: Profile | None,
    data_timeline: Timeline | None,
) -> dict[str, Any]:
    """Return the data that the page has only of entries with a plan.

    data_timeline: the simulation of data parallelism, if there is one.
    """
    micro_batch = timeline.program.graph  # the graph of one micro-batch
    explained = explain_timeline(plan, timeline, profile, data_timeline)
    # history: the step time of the best plan in the course of the search
    bound, history = explained["bound"], plan.predicted.get("history")
    return {
        "batch": plan.batch,
        "speedup": explained["speedup"] if plan.batch != graph.batch else None,
        "devices": [
            {f"{name}_ms": 1e3 * seconds for name, seconds in shares.items()}
            for shares in timeline.breakdown()  # computing, waiting for data ("exposed"), idle
        ],
        "average": explained["plan"]["average"],  # the mean of "devices"
        "bytes": explained["plan"]["bytes"],  # sent, by purpose
        # The device with the largest share of its memory in use.
        "fullest": explained["plan"]["fullest"],
        "sentences": sentences(explained),
        # The lower bound of the step time; "binding": the reason that makes it as large as it is.
        "bound": bound and {"ms": bound["ms"], "why": BOUND_REASONS[bound["binding"]]},
        # Of the critical path, per step: its longest entries, its length, and its ms by activity.
        "path": explained["path"],
        "path_ms": explained["path_ms"],
        "path_doing": explained["path_doing"],
        "search": explained["search"] and {**explained["search"], "history": history or []},
        "tiles": describe_tiles(micro_batch, plan.tiles),
        "timeline": describe_timeline(timeline, columns),
        "memory": describe_memory(timeline, columns),
        "traffic": describe_traffic(timeline, columns),
        "work": describe_work(timeline, columns),
        "plan": to_dict(plan, micro_batch),
        "text": write_tiles(micro_batch, plan.tiles),
        "file": plan_file_name(plan),
        "torchrun": torchrun_command(plan, timeline.cluster),
    }


def _describe_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return the cluster for the page; a device is [kind, node, bytes of memory]."""
    return {
        "name": cluster.name,
        "nodes": cluster.nodes,
        "devices": [[d.kind, d.node, d.memory] for d in cluster.devices],
        "links": len(cluster.links),
    }


def plan_file_name(plan: Plan) -> str:
    """Return a safe file name for a plan: its method may be any text, and the name goes into a command."""
    return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', plan.method)[:80].strip('-.') or 'plan'}.json"


def torchrun_command(plan: Plan, cluster: Cluster) -> str:
    """Return the command that runs a plan saved from the page; it has to be started on every node."""
    name = plan_file_name(plan)
    # The distinct numbers of devices of a node.
    sizes = {len(cluster.members(a)) for a in range(cluster.nodes)}
    if cluster.nodes == 1 or len(sizes) > 1:
        return f"torchrun --standalone --nproc-per-node {plan.devices} -m raddle.runtime {name}"
    return (
        f"torchrun --nnodes {cluster.nodes} --node-rank $NODE_RANK --master-addr $MASTER_ADDR "
        f"--nproc-per-node {sizes.pop()} -m raddle.runtime {name}"
    )
