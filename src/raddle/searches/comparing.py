"""Plans of methods with their predicted figures, and methods beside each other: a row each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.pipelining import is_asynchronous
from raddle.plans.plan import BUCKET, Plan
from raddle.searches.attempts import Attempts
from raddle.searches.bounds import lower_bound, unbounded
from raddle.searches.grids import Tiles
from raddle.searches.planning import find, plan_of
from raddle.searches.predict import FIGURES, data_parallel, figures, judge
from raddle.searches.registry import METHODS
from raddle.searches.settings import Found, OnProgress, Settings
from raddle.simulation.timeline import Timeline

PIPELINE = ("schedule", "stages", "microbatches")
# What a plan file keeps of its prediction, and of the search that found it.
KEPT = (
    *(key for key in FIGURES if key != "speedup"),
    "lower_bound_ms", "start", "proposals", "stopped", "history", "tried", "failed", "searched_as",
)  # fmt: skip


class Judged(NamedTuple):
    """A plan, what was simulated of it, and its figures as a row of `compare`."""

    plan: Plan
    row: dict[str, Any]
    timeline: Timeline


def planned(
    graph: Graph,
    cluster: Cluster,
    method: str,
    *,
    model: str = "",
    settings: Settings | None = None,
    recompute: int | None = None,
    found: Found | None = None,
) -> Judged:
    """The plan of a method, or of what was found already, with its predicted figures in it."""
    settings = settings or Settings()
    begun, attempts = settings.watch.seconds, Attempts()
    with settings.watch.searching():
        found = found or find(graph, cluster, method, settings)
        plan = plan_of(
            graph, cluster, method, found, settings, model=model, recompute=recompute,
            attempts=attempts,
        )  # fmt: skip
    search_s = settings.watch.seconds - begun
    found = replace(found, failed=(*found.failed, *attempts.failures))
    chosen = found.staged.graph if found.staged is not None else graph
    timeline = judge(chosen, plan, cluster, settings.profile)
    row = {**figures(timeline), "search_s": search_s}
    row |= _search_figures(graph, cluster, found, settings, plan)
    predicted = {key: row[key] for key in KEPT if row.get(key) is not None}
    return Judged(replace(plan, predicted=predicted), row, timeline)


def _search_figures(
    graph: Graph, cluster: Cluster, found: Found, settings: Settings, plan: Plan
) -> dict[str, Any]:
    """How low any plan could go, and of a search what it started from and how it ended."""
    bound = None
    if not unbounded(plan, settings.profile):
        bound = found.lower_bound_ms
        if bound is None:
            bound = 1e3 * lower_bound(graph, cluster, optimizer=settings.optimizer).seconds
    row: dict[str, Any] = {"lower_bound_ms": bound}
    if found.stopped:
        row |= {
            "start": found.start,
            "proposals": found.proposals,
            "accepted": found.accepted,
            "stopped": found.stopped,
            "history": [[p.seconds, p.proposals, p.best_ms] for p in found.history],
            "tried": list(found.tried),
            "failed": [failure.row() for failure in found.failed],
            "searched_as": _searched_as(plan, found, settings),
        }
    return row


def _searched_as(plan: Plan, found: Found, settings: Settings) -> str | None:
    """What `history` and `tried` are times of, where the plan was given something else after its tiles."""
    asked = settings.plan["sync"]
    parts = [] if plan.sync == asked else [f"sync {asked} in place of {plan.sync}"]
    if plan.bucket != BUCKET:
        parts.append(f"buckets of {BUCKET} bytes in place of {plan.bucket}")
    if plan.schedule and found.staged is None:
        parts.append(f"steps that do not overlap in place of {plan.schedule}")
    return " and ".join(parts) or None


def compare(
    graph: Graph,
    cluster: Cluster,
    methods: Sequence[str],
    *,
    model: str = "",
    settings: Settings | None = None,
    heard: OnProgress = lambda step: None,
) -> list[dict[str, Any]]:
    """A row a method; one that cannot be applied, or fails, has an `error` in place of figures."""
    rows = [
        {k: v for k, v in row.items() if k not in ("history", "tried", "failed", "searched_as")}
        for _, row in contest(graph, cluster, methods, model=model, settings=settings, heard=heard)
    ]
    add_speedups(rows)
    return rows


def add_speedups(rows: Iterable[dict[str, Any]]) -> None:
    """Over data parallelism, where it is among them."""
    rows = list(rows)
    base = next((row["step_ms"] for row in rows if row["method"] == "data"), None)
    for row in rows:
        if base is not None and row["step_ms"] is not None:
            row["speedup"] = base / row["step_ms"]


def speedup_over_data(judged: Judged, profile: Profile | None = None) -> float | None:
    """How much faster a plan is than data parallelism; None where there is nothing to compare with.

    Where steps overlap, weights are older than those that data parallelism would use: it is another thing.
    """
    plan, _, timeline = judged
    if is_asynchronous(plan):
        return None
    try:
        data = data_parallel(timeline.program.graph, plan, timeline.cluster, profile)
    except InputError:
        return None
    return 1.0 if data is None else data.step_seconds / timeline.step_seconds


def contest(
    graph: Graph,
    cluster: Cluster,
    methods: Sequence[str],
    *,
    model: str = "",
    settings: Settings | None = None,
    heard: OnProgress = lambda step: None,
) -> Iterator[tuple[Judged | None, dict[str, Any]]]:
    """What each method found, one after the other, and its row; without a plan, the row has an `error`.

    `auto` starts from all methods, so it is also given what those before it found.
    """
    settings = settings or Settings()
    known = dict[str, Tiles]()
    for done, method in enumerate(methods):
        heard({"step": method, "done": done, "of": len(methods)})

        def inside(step: Mapping[str, Any], method: str = method, done: int = done) -> None:
            part = step.get("done", 0) / step["of"] if step.get("of") else 0.0
            now = {"step": f"{method}, {step['step']}", "done": done + part, "of": len(methods)}
            heard({**step, **now, "method": method})

        attempts, judged = Attempts(), None
        with attempts.attempt(method):
            own = replace(
                settings, heard=inside, starts=known if METHODS[method].starts_from_others else {}
            )
            judged = planned(graph, cluster, method, model=model, settings=own)
        if judged is None:
            unknown = dict.fromkeys(FIGURES)
            setting = {"bn": settings.bn, "sync": settings.plan["sync"], **dict.fromkeys(PIPELINE)}
            error = attempts.failures[-1].error
            yield None, {"method": method, **unknown, **setting, "error": error}
            continue
        if not judged.plan.stages and judged.plan.microbatches == 1:
            known[method] = dict(judged.plan.tiles)
        yield judged, judged.row
