"""Builds the HTML page of a report: simulates given plans, plans with methods, and describes all of them.

`build_page_data` serves `raddle.report` and the sub-command `raddle report` (api/reporting.py).
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.pipelining import micro_batch_graph
from raddle.plans.plan import Plan
from raddle.reports.page.data import Entry, PageData, describe_entries
from raddle.searches.comparison import plan_each_method
from raddle.searches.explanation.explain_plan import devices_of_plan
from raddle.searches.predict import metrics_of_file, simulate_steps
from raddle.searches.settings import Settings
from raddle.simulation.timeline import Timeline

ALTERNATIVES_SECONDS = (
    10.0  # to time other splits of the layers of the plan that the page opens with
)

# Takes {"step": the present activity, "done": 2, "of": 5}: 2 of 5 units of work are finished.
OnProgress = Callable[[Mapping[str, Any]], None]


class GivenPlan(NamedTuple):
    """A plan that was made before, and a measured run of it if there is one."""

    plan: Plan
    name: str = ""  # path of the plan file
    run: Mapping[str, Any] | None = None  # as `read_run` returns it
    timeline: Timeline | None = None  # the simulation of the plan; None: it is simulated here
    row: Mapping[str, Any] | None = None  # its metrics; None: those of the simulation
    opens: bool = True  # the page opens with the first such plan, else with the fastest


def build_page_data(
    graph: Graph,
    cluster: Cluster,
    given: Sequence[GivenPlan],
    methods: Sequence[str],
    *,
    model: str = "",
    settings: Settings | None = None,
    alternatives: float = ALTERNATIVES_SECONDS,
    on_progress: OnProgress = lambda step: None,
) -> PageData:
    """Plan with each of `methods`, simulate these and the given plans, and return the page's data.

    model: its name on the page. settings: of the searches. alternatives: seconds to spend on other splits
    of the layers of the plan that the page opens with.
    """
    settings = settings or Settings()
    entries = _entries(graph, cluster, given, methods, model, settings, on_progress)
    return describe_entries(
        graph, cluster, _with_unique_labels(entries), model=model, profile=settings.profile,
        alternatives=alternatives, on_progress=on_progress,
    )  # fmt: skip


def _entries(
    graph: Graph,
    cluster: Cluster,
    given: Sequence[GivenPlan],
    methods: Sequence[str],
    model: str,
    settings: Settings,
    on_progress: OnProgress,
) -> Iterator[Entry]:
    """Yield an entry for each method, then one for each given plan."""
    for evaluated, row in plan_each_method(
        graph, cluster, methods, model=model, settings=settings, on_progress=on_progress
    ):
        label = row["method"]
        yield (
            Entry(label, row, evaluated.plan, evaluated.timeline)
            if evaluated  # None: the method failed, and its row has an "error"
            else Entry(label, row)
        )
    for number, given_plan in enumerate(given):
        label = given_plan.plan.method or pathlib.PurePath(given_plan.name).stem or "plan"
        on_progress({"step": f"simulating {label}", "done": number, "of": len(given)})
        yield _simulate_given(graph, cluster, given_plan, label, settings.profile)


def _simulate_given(
    graph: Graph, cluster: Cluster, given: GivenPlan, label: str, profile: Profile | None
) -> Entry:
    """Simulate a plan of the user, on the first devices of the cluster."""
    timeline = given.timeline
    if timeline is None:
        micro_batch = micro_batch_graph(graph, given.plan)  # the graph of one micro-batch
        target = devices_of_plan(given.plan, cluster)
        timeline = simulate_steps(micro_batch, given.plan, target, profile)
    row = dict(given.row or metrics_of_file(given.plan, timeline))
    return Entry(label, row, given.plan, timeline, given.run, from_user=given.opens)


def _with_unique_labels(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Give each entry a label of its own: "data", "data (2)", ..."""
    seen: set[str] = set()
    for entry in entries:
        label, number = entry.label, 1
        while label in seen:
            number += 1
            label = f"{entry.label} ({number})"
        seen.add(label)
        yield replace(entry, label=label)
