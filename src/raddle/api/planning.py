"""Plans by name of a method: what is asked for is checked first, then searched and predicted."""

from __future__ import annotations

from collections.abc import Sequence

from raddle.api.loading import load_optional_profile
from raddle.clusters import Cluster
from raddle.graph.graph import Graph
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
from raddle.searches.registry import METHODS, SEARCHES
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
    """Methods as a command line has them, "data,owt"; all where none are named."""
    return list(METHODS) if text is None else [name.strip() for name in text.split(",")]


def read_search_settings(
    methods: Sequence[str],
    *,
    bn: str,
    sync: str,
    budget: float,
    seed: int,
    pins: Sequence[str] | None,
    reduction: bool | None,
    profile: str | None,
) -> Settings:
    """Looks at everything that can be wrong before anything is captured."""
    check_settings(methods, bn=bn, sync=sync)
    return Settings(
        bn=bn,
        sync=sync,
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
    """The plan of a method, or of another partitioner's file, simulated, beside data parallelism."""
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
