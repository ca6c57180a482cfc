"""Searches with any sync kind: every time that they report is the simulated time of the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from random_plans import every_sync
from small_models import small

from raddle.clusters import cluster
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.searches.baselines import BASELINES
from raddle.searches.comparison import compare, plan_and_predict
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps
from raddle.searches.settings import Settings
from raddle.searches.single_step import simulate_single_step
from raddle.simulation.fast.coverage import unsupported
from raddle.simulation.timeline import simulate

ON = "p100:1x4"
SLICED = [sync for sync in every_sync() if Plan({}, 4, sync=sync).parsed_sync.sliced]


@pytest.mark.parametrize("sync", every_sync())
def test_chains_time_what_the_evaluator_times(sync: str) -> None:
    plan = Plan({}, 4, sync=sync)
    assert unsupported(plan) is None


def test_a_simulated_step_is_that_of_the_program() -> None:
    graph, on = small("mlp-tiny")[1], cluster(ON)
    for sync in every_sync():
        plan = plan_for(graph, on, "owt", sync=sync)
        timeline = simulate(lower(graph, plan), on)
        step = simulate_single_step(graph, plan, on)
        assert step.time == timeline.end.max()
        assert timeline.compute_seconds.max() <= step.load / 1e9 <= step.time / 1e9


@pytest.mark.parametrize(
    "sync", [pytest.param(s, marks=[] if s == "ps" else [pytest.mark.slow]) for s in SLICED]
)
def test_auto_is_no_slower_than_a_method_that_fits(sync: str) -> None:
    graph, on = small("alexnet-tiny")[1], cluster(ON)
    progress: list[dict[str, Any]] = []
    options = Settings(
        sync=sync, budget=3, proposals=100, on_progress=lambda step: progress.append(dict(step))
    )
    rows = {r["method"]: r for r in compare(graph, on, [*BASELINES, "optcnn"], settings=options)}
    evaluated = plan_and_predict(graph, on, "auto", settings=options)
    assert evaluated.plan.sync == evaluated.row["sync"] == sync
    for name, row in rows.items():
        if row["step_ms"] is not None and row["fits"]:
            assert evaluated.row["step_ms"] <= row["step_ms"] * (1 + 1e-9), name
    assert any("best_ms" in step for step in progress)
    tried = {row["name"]: row for row in evaluated.row["tried"]}
    for name in BASELINES.keys() & tried.keys():
        plan = plan_for(graph, on, name, sync=sync)
        single_step = simulate_single_step(graph, plan, on).time / 1e6
        period = 1e3 * simulate_steps(graph, plan, on).step_seconds
        assert tried[name]["step_ms"] == (period if tried[name]["simulated"] else single_step)


@pytest.mark.parametrize(
    "method", ["optcnn", "flexflow", pytest.param("hypergraph-mixed", marks=pytest.mark.slow)]
)
def test_searches_find_plans_for_it(method: str) -> None:
    graph, on = small("lenet-tiny")[1], cluster(ON)
    options = Settings(sync="ps", budget=1, proposals=50)
    evaluated = plan_and_predict(graph, on, method, settings=options)
    assert evaluated.plan.sync == "ps"
    assert evaluated.row["step_ms"] == 1e3 * simulate_steps(graph, evaluated.plan, on).step_seconds
    if method == "flexflow":
        data = plan_for(graph, on, "data", sync="ps")
        step_time = simulate_single_step(graph, replace(evaluated.plan, predicted={}), on).time
        assert step_time <= simulate_single_step(graph, data, on).time


def test_what_is_chosen_after_the_tiles_is_said() -> None:
    graph, on = small("lenet-tiny")[1], cluster(ON)
    options = Settings(budget=1, proposals=20, sync="allreduce")
    assert plan_and_predict(graph, on, "flexflow", settings=options).row["searched_as"] is None
    options = replace(options, schedule="threaded:2")
    searched_as = plan_and_predict(graph, on, "flexflow", settings=options).plan.predicted[
        "searched_as"
    ]
    assert searched_as == "steps that do not overlap in place of threaded:2"
