"""Writes the page of a report: `report` for results, `report_methods` for the methods of one model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raddle.api.comparing import Comparison
from raddle.api.jit_warmup import EVALUATOR, jit_functions_for, warm_up
from raddle.api.plan_result import PlanResult
from raddle.api.planning import ignore_progress
from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.files import write_atomically
from raddle.graph.graph import Graph
from raddle.reports.page.data import PageData
from raddle.reports.page.html import render_page
from raddle.reports.page.page_report import ALTERNATIVES_SECONDS, GivenPlan, build_page_data
from raddle.searches.settings import OnProgress, Settings

__all__ = ["report", "report_methods", "report_results"]


def report(
    results: PlanResult | Comparison | Iterable[PlanResult],
    path: str | os.PathLike[str],
    *,
    methods: Sequence[str] | None = None,
    alternatives: float = ALTERNATIVES_SECONDS,
    on_progress: OnProgress | None = None,
) -> None:
    """Writes a page that shows results: one HTML file, which works offline.

    results: of `raddle.plan` or `raddle.load_plan`, for one model; the page opens with the first. Or a
        comparison: the page opens with its fastest plan that fits.
    methods: further methods to plan with, under the settings of the first result. None: data parallelism,
        if it is not among the results.
    alternatives: seconds to spend on other splits of the layers of the plan that the page opens with.

    >>> import os, raddle, tempfile
    >>> results = [raddle.plan("mlp-tiny", 8, cluster="local:2", method=m) for m in ("data", "owt")]
    >>> path = os.path.join(tempfile.mkdtemp(), "plans.html")
    >>> raddle.report(results, path, alternatives=0)
    >>> os.path.exists(path)
    True
    """
    if isinstance(methods, str):
        raise InputError(f"methods is the text '{methods}': give a list, as ['data', 'auto'].")
    checked = _check_results(results)
    settings = Settings(profile=checked[0].bound.profile)
    report_results(
        checked, path, methods, settings, opens_first=not isinstance(results, Comparison),
        alternatives=alternatives, on_progress=on_progress or ignore_progress,
    )  # fmt: skip


def _check_results(results: Any) -> list[PlanResult]:
    """Return results as a list. Raises InputError if something else was given."""
    several = [results] if isinstance(results, PlanResult) else results
    items = list(several) if isinstance(several, Iterable) else [several]
    if not items:
        raise InputError("there is no result to report: make one with raddle.plan.")
    for item in items:
        if not isinstance(item, PlanResult):
            raise InputError(
                f"raddle.report takes results, not a {type(item).__name__}: write "
                "raddle.report([raddle.plan(...)], 'page.html'), or for several methods "
                "raddle.report(raddle.compare(..., methods=[...]), 'page.html')."
            )
        for what, of in (("model", item.graph.name), ("cluster", item.cluster.name)):
            first = items[0].graph.name if what == "model" else items[0].cluster.name
            if of != first:
                raise InputError(
                    f"a page shows results for one {what}, these are for '{first}' and '{of}': "
                    "write a page for each."
                )
    return items


def report_results(
    results: Sequence[PlanResult],
    path: str | os.PathLike[str],
    methods: Sequence[str] | None,
    settings: Settings,
    *,
    names: Sequence[str] = (),
    runs: Mapping[str, Mapping[str, Any]] | None = None,
    opens_first: bool = True,
    alternatives: float = ALTERNATIVES_SECONDS,
    on_progress: OnProgress = ignore_progress,
) -> PageData:
    """Write the page of results and return its data.

    names: the paths of plan files, by result. runs: measured runs, by path of the plan file.
    """
    first = results[0]
    plan, cluster = first.plan, first.cluster
    graph = first.graph.for_batch(plan.batch) if plan.batch else first.graph
    if methods is None:
        methods = [] if any(result.plan.method == "data" for result in results) else ["data"]
    settings = replace(
        settings, bn=plan.bn, sync=plan.sync, precision=plan.precision, optimizer=plan.optimizer
    )
    names = names or [""] * len(results)
    given = [
        _given_plan(result, name, (runs or {}).get(name), opens=opens_first)
        for result, name in zip(results, names, strict=True)
    ]
    return _write_page(
        graph, cluster, given, methods, path, settings=settings, model=plan.model or graph.name,
        alternatives=alternatives, on_progress=on_progress,
    )  # fmt: skip


def _given_plan(
    result: PlanResult, name: str, run: Mapping[str, Any] | None, *, opens: bool
) -> GivenPlan:
    """Return a result as the page takes it; a plan that uses a part of the cluster is simulated there."""
    if result.plan.devices < len(result.cluster.devices):
        return GivenPlan(result.plan, name, run, opens=opens)
    return GivenPlan(result.plan, name, run, result.timeline, result.row, opens)


def report_methods(
    graph: Graph,
    cluster: Cluster,
    methods: Sequence[str],
    path: str | os.PathLike[str],
    settings: Settings,
    *,
    alternatives: float = ALTERNATIVES_SECONDS,
    on_progress: OnProgress = ignore_progress,
) -> PageData:
    """Plan with each method, write the page and return its data."""
    return _write_page(
        graph, cluster, (), methods, path, settings=settings, model=graph.name,
        alternatives=alternatives, on_progress=on_progress,
    )  # fmt: skip


def _write_page(
    graph: Graph,
    cluster: Cluster,
    given: Sequence[GivenPlan],
    methods: Sequence[str],
    path: str | os.PathLike[str],
    *,
    on_progress: OnProgress,
    **options: Any,
) -> PageData:
    # EVALUATOR: the numba functions of the fast simulation.
    warm_up(dict.fromkeys([EVALUATOR, *jit_functions_for(methods)]), on_progress)
    data = build_page_data(graph, cluster, given, methods, on_progress=on_progress, **options)
    write_atomically(os.fspath(path), render_page(data))
    return data
