"""Makes plans with a named method: checks the options, runs the method, predicts the plan's metrics.

`BASELINES` follow a rule, such as data parallelism; `SEARCHES` search; `METHODS` has both.
`AUTO`, in place of a sync kind, takes the fastest of the sync kinds that compute the same result.
`run_method` returns the tiles of a method (a `SearchResult`), `build_plan` makes a complete plan of them,
`plan_for` does both, `plan_and_predict` also simulates the plan (an `EvaluatedPlan`: plan, row of metrics
and timeline), and `compare` does so for several methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from raddle.api.loading import load_optional_profile
from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.plans.optimizers import check_optimizer
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
from raddle.searches.settings import AUTO, SearchResult, Settings

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
    "check_optimizer",
    "check_pipeline",
    "compare",
    "method_names",
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


def read_search_settings(
    methods: Sequence[str],
    *,
    bn: str,
    sync: str,
    precision: str,
    optimizer: str,
    budget: float,
    seed: int,
    pins: Sequence[str] | None,
    reduction: bool | None,
    profile: str | None,
) -> Settings:
    """Return checked settings; raises InputError before a model is captured.

    bn: samples over which batch norm takes its statistics: "local" (of a device), "microbatch" or "global"
    (the whole batch). sync: a sync kind, or "auto" for the fastest. precision, optimizer: by name, as in
    plans/precision.py and plans/optimizers.py. budget: seconds for each search. pins: splits such as
    "features.*=n/4". reduction: whether summed dimensions may be split; None: the method's default.
    profile: path of a profile file.
    """
    check_settings(methods, bn=bn, sync=sync, precision=precision, optimizer=optimizer)
    return Settings(
        bn=bn,
        sync=sync,
        precision=precision,
        optimizer=optimizer,
        budget=budget,
        seed=seed,
        pins=tuple(read_pin(text) for text in pins or ()),
        reduction=reduction,
        profile=load_optional_profile(profile),
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
