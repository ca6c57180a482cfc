"""Builds the HTML page of a report: simulates given plans, plans with methods, and describes all of them.

`report` is the public raddle.report; `build_page_data` serves the sub-command `raddle report`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.files import write_atomically
from raddle.graph.graph import Graph
from raddle.plans.pipelining import micro_batch_graph
from raddle.plans.plan import Plan
from raddle.reports.page.data import Entry, PageData, describe_entries
from raddle.reports.page.html import render_page
from raddle.searches.comparison import plan_each_method
from raddle.searches.explanation.explain_plan import devices_of_plan
from raddle.searches.predict import predicted_metrics, simulate_steps
from raddle.searches.settings import Settings

ALTERNATIVES_SECONDS = (
    10.0  # to time other splits of the layers of the plan that the page opens with
)

# Takes {"step": the present activity, "done": 2, "of": 5}: 2 of 5 units of work are finished.
OnProgress = Callable[[Mapping[str, Any]], None]


class GivenPlan(NamedTuple):
    """A plan of the user, and a measured run of it if there is one."""

    plan: Plan
    name: str = ""  # path of the plan file
    run: Mapping[str, Any] | None = None  # as `read_run` returns it


def report(
    graph: Graph,
    plans: Sequence[Plan],
    path: str | pathlib.Path,
    *,
    cluster: Cluster | None = None,
    alternatives: float = ALTERNATIVES_SECONDS,
) -> None:
    """Write a page that shows plans of a graph, on the cluster that they were made for or another.

    The page opens with the first plan. `alternatives`: seconds to spend on other splits of its layers.

    >>> import os, raddle, tempfile, torch
    >>> loss = raddle.supervised(torch.nn.functional.mse_loss)
    >>> batch = torch.randn(8, 4), torch.randn(8, 2)
    >>> graph = raddle.capture(torch.nn.Linear(4, 2), batch, loss)
    >>> plans = [raddle.search(graph, raddle.cluster("local:2"), m) for m in ("data", "layerwise")]
    >>> path = os.path.join(tempfile.mkdtemp(), "plans.html")
    >>> raddle.report(graph, plans, path, alternatives=0)
    >>> os.path.exists(path)
    True
    """
    from raddle.errors import InputError

    if not plans:
        raise InputError("there is no plan to report: make one with raddle.search.")
    if cluster is None:
        if plans[0].cluster is None:
            raise InputError("the plan names no cluster: give raddle.report one.")
        cluster = Cluster.from_dict(plans[0].cluster, "the plan's cluster")
    data = build_page_data(
        graph, cluster, [GivenPlan(plan) for plan in plans], (), alternatives=alternatives
    )
    write_atomically(path, render_page(data))


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
    micro_batch = micro_batch_graph(graph, given.plan)  # the graph of one micro-batch
    timeline = simulate_steps(
        micro_batch, given.plan, devices_of_plan(given.plan, cluster), profile
    )
    search_metrics = ("search_s", "lower_bound_ms")  # metrics that only the plan file has
    row = predicted_metrics(timeline) | {k: given.plan.predicted.get(k) for k in search_metrics}
    return Entry(label, row, given.plan, timeline, given.run, from_user=True)


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
