"""Makes the plans of methods together with their predicted metrics, and compares several methods.

A row is a dictionary with the metrics of one method's plan: `step_ms`, `samples_per_s`, `peak_bytes` and
others (predict.METRICS), and, for a search, how the search went (settings.SearchResult).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.pipelining import is_asynchronous
from raddle.plans.plan import DEFAULT_BUCKET, Plan
from raddle.plans.sync import DEFAULT
from raddle.plans.value_dtypes import in_precision
from raddle.searches.attempts import Attempts
from raddle.searches.bounds import lower_bound, why_unbounded
from raddle.searches.grids import Tiles
from raddle.searches.planning import build_plan, run_method
from raddle.searches.predict import (
    METRICS,
    predicted_metrics,
    simulate_data_parallel,
    simulate_steps,
)
from raddle.searches.registry import METHODS
from raddle.searches.settings import OnProgress, SearchResult, Settings
from raddle.simulation.timeline import Timeline

PIPELINE_KEYS = ("schedule", "stages", "microbatches")  # keys of a row that describe the pipeline
# The keys of a row that are stored in a plan file, as `predicted`.
PREDICTED_KEYS = (
    *(key for key in METRICS if key != "speedup"),
    "lower_bound_ms", "start", "proposals", "stopped", "history", "tried", "failed", "searched_as",
)  # fmt: skip


class EvaluatedPlan(NamedTuple):
    """A plan, its row of metrics, and the simulation that they come from."""

    plan: Plan
    row: dict[str, Any]
    timeline: Timeline


def plan_and_predict(
    graph: Graph,
    cluster: Cluster,
    method: str,
    *,
    model: str = "",
    settings: Settings | None = None,
    recompute: int | None = None,
    result: SearchResult | None = None,
) -> EvaluatedPlan:
    """Runs a method, builds its plan, predicts the metrics, and returns plan, metrics and simulation.

    The metrics are in the row, and also in the plan as `plan.predicted`. result: what the method has
    returned already; None: the method is run. model, recompute: see planning.plan_for.
    """
    settings = (settings or Settings()).with_running_clock()
    started_at, attempts = settings.stopwatch.seconds, Attempts()
    with settings.stopwatch.paused_for_jit():
        result = result or run_method(graph, cluster, method, settings)
        plan = build_plan(
            graph, cluster, method, result, settings, model=model, recompute=recompute,
            attempts=attempts,
        )  # fmt: skip
    search_s = settings.stopwatch.seconds - started_at
    result = replace(result, failed=(*result.failed, *attempts.failures))
    planned_graph = result.pipeline.graph if result.pipeline is not None else graph
    timeline = simulate_steps(planned_graph, plan, cluster, settings.profile)
    row = {**predicted_metrics(timeline), "search_s": search_s}
    row |= _search_metrics(graph, cluster, result, settings, plan)
    predicted = {key: row[key] for key in PREDICTED_KEYS if row.get(key) is not None}
    return EvaluatedPlan(replace(plan, predicted=predicted), row, timeline)


def _search_metrics(
    graph: Graph, cluster: Cluster, result: SearchResult, settings: Settings, plan: Plan
) -> dict[str, Any]:
    """Returns a row with the lower bound on the step time and, for a search, how the search went."""
    lower_bound_ms = None
    if not why_unbounded(plan, settings.profile):
        lower_bound_ms = result.lower_bound_ms
        if lower_bound_ms is None:
            typed = in_precision(graph, plan.parsed_precision)
            lower_bound_ms = 1e3 * lower_bound(typed, cluster, optimizer=plan.optimizer).seconds
    row: dict[str, Any] = {"lower_bound_ms": lower_bound_ms}
    if result.stopped:  # only searches say why they stopped
        row |= {
            "start": result.start,
            "proposals": result.proposals,
            "accepted": result.accepted,
            "stopped": result.stopped,
            "history": [[p.seconds, p.proposals, p.best_ms] for p in result.history],
            "tried": list(result.tried),
            "failed": [failure.row() for failure in result.failed],
            "searched_as": _searched_as(plan, result, settings),
        }
    return row


def _searched_as(plan: Plan, result: SearchResult, settings: Settings) -> str | None:
    """Returns a text that says how the plans that the search timed differ from the final plan, or None.

    The sync kind, buckets and a schedule threaded:N (N steps at once) are added after the search, so the
    times in `history` and `tried` are without them. Example: "sync allreduce in place of p3".
    """
    requested = settings.plan_fields["sync"]
    parts = [] if plan.sync == requested else [f"sync {requested} in place of {plan.sync}"]
    if plan.bucket != DEFAULT_BUCKET:
        parts.append(f"buckets of {DEFAULT_BUCKET} bytes in place of {plan.bucket}")
    if plan.schedule and result.pipeline is None:
        parts.append(f"steps that do not overlap in place of {plan.schedule}")
    return " and ".join(parts) or None


def compare(
    graph: Graph,
    cluster: Cluster,
    methods: Sequence[str],
    *,
    model: str = "",
    settings: Settings | None = None,
    on_progress: OnProgress = lambda step: None,
) -> list[dict[str, Any]]:
    """Returns a row for each method; a method that fails has an `error` instead of metrics."""
    rows = [
        {k: v for k, v in row.items() if k not in ("history", "tried", "failed", "searched_as")}
        for _, row in plan_each_method(
            graph, cluster, methods, model=model, settings=settings, on_progress=on_progress
        )
    ]
    add_speedups(rows)
    return rows


def add_speedups(rows: Iterable[dict[str, Any]]) -> None:
    """Sets `speedup` over data parallelism in all rows, if `data` is among the methods."""
    rows = list(rows)
    base = next((row["step_ms"] for row in rows if row["method"] == "data"), None)
    for row in rows:
        if base is not None and row["step_ms"] is not None:
            row["speedup"] = base / row["step_ms"]


def speedup_over_data(evaluated: EvaluatedPlan, profile: Profile | None = None) -> float | None:
    """Returns the speedup of a plan over data parallelism; None if data parallelism cannot be applied.

    It is also None for asynchronous plans: they train with older weights, so the times do not compare.
    """
    plan, _, timeline = evaluated
    if is_asynchronous(plan):
        return None
    graph, cluster = timeline.program.graph, timeline.cluster
    try:
        if plan.method in METHODS and METHODS[plan.method].sets_sync:
            plain = replace(plan, sync=DEFAULT)
            data = simulate_data_parallel(graph, plain, cluster, profile)
            data = data or simulate_steps(graph, plain, cluster, profile)
        else:
            data = simulate_data_parallel(graph, plan, cluster, profile)
    except InputError:
        return None
    return 1.0 if data is None else data.step_seconds / timeline.step_seconds


def plan_each_method(
    graph: Graph,
    cluster: Cluster,
    methods: Sequence[str],
    *,
    model: str = "",
    settings: Settings | None = None,
    on_progress: OnProgress = lambda step: None,
) -> Iterator[tuple[EvaluatedPlan | None, dict[str, Any]]]:
    """Yields for each method its evaluated plan and its row; if the method fails, None and an `error` row.

    `auto` starts from the plans of other methods, so it also gets the tiles of the methods before it.
    """
    settings = settings or Settings()
    tiles_by_method = dict[str, Tiles]()
    for done, method in enumerate(methods):
        on_progress({"step": method, "done": done, "of": len(methods)})

        def report_progress(
            step: Mapping[str, Any], method: str = method, done: int = done
        ) -> None:
            """Passes on the progress inside of one method, as progress of the whole comparison."""
            # part: the fraction of this method that is done, from 0 to 1
            part = step.get("done", 0) / step["of"] if step.get("of") else 0.0
            overall = {"step": f"{method}, {step['step']}", "done": done + part, "of": len(methods)}
            on_progress({**step, **overall, "method": method})

        attempts, evaluated = Attempts(), None
        with attempts.attempt(method):
            method_settings = replace(
                settings,
                on_progress=report_progress,
                starts=tiles_by_method if METHODS[method].starts_from_others else {},
            )
            evaluated = plan_and_predict(
                graph, cluster, method, model=model, settings=method_settings
            )
        if evaluated is None:
            no_metrics = dict.fromkeys(METRICS)
            plan_options = {
                "bn": settings.bn,
                "sync": settings.plan_fields["sync"],
                "precision": settings.precision,
                "optimizer": settings.optimizer,
                **dict.fromkeys(PIPELINE_KEYS),
            }
            error = attempts.failures[-1].error
            yield None, {"method": method, **no_metrics, **plan_options, "error": error}
            continue
        # Tiles of a pipeline are for the graph of one micro-batch: `auto` cannot start from them.
        if not evaluated.plan.stages and evaluated.plan.microbatches == 1:
            tiles_by_method[method] = dict(evaluated.plan.tiles)
        yield evaluated, evaluated.row
