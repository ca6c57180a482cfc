"""Makes plans with a named method: checks the options, runs the method, predicts the plan's metrics.

`plan` does all of that for a model and returns a `PlanResult`; the verb `raddle plan` calls it.
`BASELINES` follow a rule, such as data parallelism; `SEARCHES` search; `METHODS` has both.
`AUTO`, in place of a sync kind, takes the fastest of the sync kinds that compute the same result.
`run_method` returns the tiles of a method (a `SearchResult`), `build_plan` makes a complete plan of them,
`plan_for` does both, `plan_and_predict` also simulates the plan (an `EvaluatedPlan`: plan, row of metrics
and timeline), and `compare` does so for several methods.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raddle.api.costs import load_optional_profile
from raddle.api.graphs import Model, graph_of
from raddle.api.jit_warmup import jit_functions_for, warm_up
from raddle.api.modules import PlannedModel
from raddle.api.plan_result import PlanResult, SimulatedPlan
from raddle.api.schedules import read_schedule
from raddle.clusters import Cluster
from raddle.clusters import cluster as find_cluster
from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.searches.baselines import BASELINES as BASELINES
from raddle.searches.comparison import EvaluatedPlan, compare, plan_and_predict, speedup_over_data
from raddle.searches.hypergraph.method import plan_from_partition
from raddle.searches.pins import read_pin
from raddle.searches.planning import (
    build_plan,
    check_pipeline,
    check_settings,
    plan_for,
    run_method,
)
from raddle.searches.registry import METHODS, SEARCHES, canonical_name
from raddle.searches.settings import AUTO, BUDGET, OnProgress, SearchResult, Settings
from raddle.simulation.timeline import Timeline

__all__ = [
    "AUTO",
    "BASELINES",
    "METHODS",
    "SEARCHES",
    "EvaluatedPlan",
    "SearchResult",
    "Settings",
    "build_plan",
    "canonical_name",
    "check_pipeline",
    "compare",
    "method_names",
    "plan",
    "plan_and_predict",
    "plan_for",
    "predict",
    "read_search_settings",
    "run_method",
]  # fmt: skip


def method_names(text: str | None) -> list[str]:
    """Return the methods of an option such as "data,owt", by name or alias; None: all methods."""
    if text is None:
        return list(METHODS)
    return list(dict.fromkeys(canonical_name(name.strip()) for name in text.split(",")))


Pins = Mapping[str, str] | Sequence[str]  # {"features.*": "n/4"}, or ["features.*=n/4"]


def plan(
    model: Model,
    batch: Any = None,
    loss: Loss | None = None,
    *,
    cluster: Cluster | str | os.PathLike[str],
    method: str = AUTO,
    precision: str = "float32",
    optimizer: str = "sgd",
    bn: str = "local",
    sync: str = AUTO,
    recompute: int | None = None,
    budget: float = BUDGET,
    seed: int = 0,
    pins: Pins = (),
    reduction: bool | None = None,
    schedule: str | None = None,
    stages: int | None = None,
    microbatches: int | None = None,
    epsilon: float = 0.1,
    partition: str | None = None,
    profile: Profile | str | None = None,
    proposals: int | None = None,
    on_progress: OnProgress | None = None,
) -> PlanResult:
    """Finds the fastest plan to train a model on a cluster, and returns it with its prediction.

    model, batch, loss: a module, an example batch of the global size, and `loss(model, batch)`, which
        returns a scalar. Or the name of a model of the zoo, or file.py:function, with the number of samples
        as `batch`. Or a graph of `raddle.capture` alone. The module is not changed.
    cluster: a preset such as "h100:4x8" (4 nodes of 8), "local:2", a YAML file, or a Cluster.
    method: "auto" takes the fastest of all; `raddle compare` lists the methods.
    precision: "float32", "tf32", "bf16", "fp16" (autocast) or "bf16:pure" (with float32 master weights).
    optimizer: of the training; its states need memory: "sgd", "momentum", "adam" or "adamw".
    bn: the samples that batch norm uses: "local" (those of a device) or "global" (the whole batch).
    sync: how copies of a parameter are synchronised, as "allreduce", "sharded", "ps", "p3"; "auto": the
        fastest that computes the same.
    recompute: activation checkpointing in this many blocks; None: the method decides.
    budget: seconds that a search takes, roughly. seed: of its random numbers.
    pins: splits that the search must not change, as {"features.*": "n/16"}.
    reduction: whether dimensions that are summed over may be split; None: the method decides.
    schedule, stages, microbatches: of a pipeline; None: the method decides. A schedule may also be a file.
    epsilon: the imbalance that the methods hypergraph-* allow. partition: the file of another partitioner's
        result, of which the plan is made.
    profile: measured times of operators, or the path of their file.
    proposals: a search ends after this many tried moves, in place of the budget: with a seed it finds the
        same plan again.
    on_progress: is called with mappings such as {"step": "searching", "done": 2.0, "of": 30.0}.

    >>> import raddle
    >>> result = raddle.plan("mlp-tiny", 8, cluster="local:2", method="data")
    >>> result.fits, result.plan
    (True, <Plan data of mlp-tiny: 12 operators on 2 devices, batch 8, sync allreduce>)
    """
    if partition is not None:
        method = "partition"  # the name of the method in the plan file
    settings = read_search_settings(
        [] if partition else [method], bn=bn, sync=sync, precision=precision, optimizer=optimizer,
        budget=budget, seed=seed, pins=pins, reduction=reduction, profile=profile,
    )  # fmt: skip
    settings = replace(
        settings, schedule=read_schedule(schedule), stages=stages, microbatches=microbatches,
        epsilon=epsilon, proposals=proposals,
    )  # fmt: skip
    if partition is None:
        method = canonical_name(method)
    check_pipeline(method, settings)
    where = find_cluster(cluster)
    report = on_progress or ignore_progress
    graph, workload = capture_reporting(model, batch, loss, report)
    warm_up(jit_functions_for([method]), report)
    new_plan, row, timeline = predict(
        graph, where, method, replace(settings, on_progress=report), model=graph.name,
        recompute=recompute, partition=partition,
    )  # fmt: skip
    planned_graph = graph_of_plan(timeline)
    return PlanResult(
        SimulatedPlan(new_plan, planned_graph, where, settings.profile, timeline, row, workload)
    )


def capture_reporting(
    model: Model, batch: Any, loss: Loss | None, on_progress: OnProgress
) -> PlannedModel:
    """Return the graph of a model; a capture, which may take long, is reported as progress."""
    if not isinstance(model, Graph):
        name = model if isinstance(model, str) else type(model).__name__
        on_progress({"step": f"capturing {name}", "done": 0, "of": 1})
    return graph_of(model, batch, loss)


def graph_of_plan(timeline: Timeline) -> Graph:
    """Return the graph that a simulated plan is for: that of one micro-batch, in the model's dtypes."""
    graph = timeline.program.graph  # in the dtypes of the plan's precision
    return graph.captured or graph


def ignore_progress(step: Mapping[str, Any]) -> None:
    """Take a report of progress that nobody asked for."""


def read_search_settings(
    methods: Sequence[str],
    *,
    bn: str,
    sync: str,
    precision: str,
    optimizer: str,
    budget: float,
    seed: int,
    pins: Pins | None,
    reduction: bool | None,
    profile: Profile | str | None,
) -> Settings:
    """Return checked settings; raises InputError before a model is captured.

    bn: samples over which batch norm takes its statistics: "local" (of a device), "microbatch" or "global"
    (the whole batch). sync: a sync kind, or "auto" for the fastest. precision, optimizer: by name, as in
    plans/precision.py and plans/optimizers.py. budget: seconds for each search. pins: splits such as
    "features.*=n/4". reduction: whether summed dimensions may be split; None: the method's default.
    profile: a profile, or the path of its file.
    """
    check_settings(methods, bn=bn, sync=sync, precision=precision, optimizer=optimizer)
    loaded_profile = load_optional_profile(profile)
    if loaded_profile is not None and loaded_profile.blocks is not None:
        loaded_profile.blocks.check_precision(precision)
    if isinstance(pins, Mapping):
        pins = [f"{pattern}={split}" for pattern, split in pins.items()]
    return Settings(
        bn=bn,
        sync=sync,
        precision=precision,
        optimizer=optimizer,
        budget=budget,
        seed=seed,
        pins=tuple(read_pin(text) for text in pins or ()),
        reduction=reduction,
        profile=loaded_profile,
    )


def predict(
    graph: Graph,
    cluster: Cluster,
    method: str,
    settings: Settings,
    *,
    model: str,
    recompute: int | None = None,
    partition: str | None = None,
) -> EvaluatedPlan:
    """Make a plan and simulate it; return the plan, a row of metrics and the timeline.

    The row has the speedup over data parallelism. recompute: number of blocks for activation checkpointing.
    partition: the file of another partitioner's result; the plan is made from it instead of by `method`.
    """
    partition_result = None if partition is None else plan_from_partition(graph, cluster, partition)
    evaluated = plan_and_predict(
        graph,
        cluster,
        method,
        model=model,
        settings=settings,
        recompute=recompute,
        result=partition_result,
    )
    evaluated.row["speedup"] = speedup_over_data(evaluated, settings.profile)
    return evaluated
