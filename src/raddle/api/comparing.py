"""Compares methods: `compare` makes a plan with each method and returns a `Comparison` of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from raddle.api.defaults import COMPARE_SECONDS
from raddle.api.graphs import Model
from raddle.api.jit_warmup import jit_functions_for, warm_up
from raddle.api.plan_result import PlanResult, SimulatedPlan
from raddle.api.planning import (
    AUTO,
    METHODS,
    Pins,
    canonical_name,
    capture_reporting,
    graph_of_plan,
    ignore_progress,
    read_search_settings,
)
from raddle.clusters import Cluster, compiled
from raddle.clusters import cluster as find_cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.supervised import Loss
from raddle.reports.notebook import comparison_html
from raddle.reports.tables.plan_metrics import show_comparison
from raddle.reports.terminal import text_of
from raddle.searches.comparison import add_speedups, plan_each_method
from raddle.searches.settings import OnProgress

__all__ = ["Comparison", "compare"]

# Keys of a row that a comparison leaves out; each result has them, as `result.row`.
SEARCH_RECORD = ("history", "tried", "failed", "searched_as")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The plans of several methods for one model on one cluster; made by `raddle.compare`.

    Its text is the table that `raddle compare` prints. `comparison["owt"]` is the result of a method.
    """

    title: str  # the model and the cluster
    rows: list[dict[str, Any]]  # by method, its metrics, or an "error"
    results: Mapping[str, PlanResult]  # by method; without the methods that failed

    @property
    def best(self) -> PlanResult:
        """The fastest result that fits into memory."""
        fitting = [result for result in self.results.values() if result.fits]
        if not fitting:
            raise InputError(
                f"no plan fits for {self.title}: take a larger cluster, a smaller batch, or sync='sharded'."
            )
        return min(fitting, key=lambda result: result.step_ms)

    def __getitem__(self, method: str) -> PlanResult:
        if method in self.results:
            return self.results[method]
        errors = {row["method"]: row["error"] for row in self.rows if row.get("error")}
        if method in errors:
            raise InputError(f"the method '{method}' gave no plan: {errors[method]}")
        raise InputError(f"'{method}' was not compared: there are {', '.join(self.results)}.")

    def __iter__(self) -> Iterator[PlanResult]:
        return iter(self.results.values())

    def __len__(self) -> int:
        return len(self.results)

    def to_pandas(self) -> Any:
        """Returns the rows as a DataFrame of pandas, with the methods as its index."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InputError(
                "to_pandas needs pandas, which is not installed: pip install pandas, or use .rows."
            ) from None
        return pandas.DataFrame(self.rows).set_index("method")

    def __repr__(self) -> str:
        return f"{self.title}\n{text_of(show_comparison, self.rows)}"

    def _repr_html_(self) -> str:
        """Returns the picture that notebooks show: a bar for each method."""
        return comparison_html(self.title, self.rows)


def compare(
    model: Model,
    batch: Any = None,
    loss: Loss | None = None,
    *,
    cluster: Cluster | str | os.PathLike[str],
    methods: Sequence[str] | None = None,
    precision: str = "float32",
    optimizer: str = "sgd",
    compile: bool = False,
    bn: str = "local",
    sync: str = AUTO,
    budget: float = COMPARE_SECONDS,
    seed: int = 0,
    pins: Pins = (),
    reduction: bool | None = None,
    profile: Profile | str | None = None,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Makes a plan with each method and returns a table of their predictions, with the plans.

    methods: their names or aliases; None: all methods. compile: predict runs with torch.compile, not eager
    ones. budget: seconds for each search. All other arguments are those of `raddle.plan`. A method that
    fails has an `error` in its row.

    >>> import raddle
    >>> comparison = raddle.compare("mlp-tiny", 8, cluster="local:2", methods=["data", "owt"])
    >>> [row["method"] for row in comparison.rows], comparison["data"].row["speedup"]
    (['data', 'owt'], 1.0)
    """
    if isinstance(methods, str):
        raise InputError(f"methods is the text '{methods}': give a list, as ['data', 'auto'].")
    names = list(dict.fromkeys(map(canonical_name, METHODS if methods is None else methods)))
    settings = read_search_settings(
        names, bn=bn, sync=sync, precision=precision, optimizer=optimizer, budget=budget, seed=seed,
        pins=pins, reduction=reduction, profile=profile,
    )  # fmt: skip
    where = compiled(find_cluster(cluster)) if compile else find_cluster(cluster)
    report = on_progress or ignore_progress
    graph, workload = capture_reporting(model, batch, loss, report)
    warm_up(jit_functions_for(names), report)
    rows, results = [], {}
    for evaluated, row in plan_each_method(
        graph, where, names, model=graph.name, settings=settings, on_progress=report
    ):
        rows.append(row)
        if evaluated is not None:
            # Without the timeline: those of all methods may be too large for the memory.
            planned_graph = graph_of_plan(evaluated.timeline)
            results[row["method"]] = PlanResult(
                SimulatedPlan(
                    evaluated.plan, planned_graph, where, settings.profile, None, row, workload
                )
            )
    add_speedups(rows)  # also in the rows of the results
    shown = [{k: v for k, v in row.items() if k not in SEARCH_RECORD} for row in rows]
    return Comparison(f"{graph.name}, batch {graph.batch}, on {where.name}", shown, results)
