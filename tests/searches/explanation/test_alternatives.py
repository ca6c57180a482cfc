"""The times of other splits in `raddle explain` and in the HTML report are those of their simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from random_plans import every_sync
from small_models import small

from raddle import zoo
from raddle.clusters import Cluster, cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.notation import write_tiling
from raddle.plans.pipelining import THREADED, cut_stages, is_asynchronous, schedule_splits_backward
from raddle.plans.plan import Plan
from raddle.plans.schedules import NAMES
from raddle.plans.tiling import Grid, Tiling, even_cuts
from raddle.program.lower import lower
from raddle.reports.explanation import show_op
from raddle.reports.page.alternatives import describe_alternatives
from raddle.searches.explanation import plan_timers
from raddle.searches.explanation.alternatives import candidate_configurations
from raddle.searches.explanation.explain_op import explain_op, plan_space_of
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps
from raddle.searches.slice_order import with_slice_order
from raddle.simulation.timeline import simulate

MODEL, OP = "mlp-tiny", "layers.1"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small(MODEL)[1]


@pytest.fixture(scope="module")
def target() -> Cluster:
    return cluster("p100:1x2")


def step_milliseconds(graph: Graph, plan: Plan, target: Cluster) -> float:
    """Simulate a single step or, if steps overlap, the average of several; return milliseconds."""
    if is_asynchronous(plan):
        return 1e3 * simulate_steps(graph, plan, target).step_seconds
    return int(simulate(lower(graph, replace(plan, steps=1)), target).end.max()) / 1e6


def other_steps(graph: Graph, plan: Plan, target: Cluster, g: int) -> dict[str, float]:
    """Simulate all possible alternatives of group g; return milliseconds by the tiles of its anchor."""
    space = plan_space_of(graph, plan, target)
    anchor = space.groups[g].members[0].op
    step_ms: dict[str, float] = {}
    for configuration in candidate_configurations(space, g, plan.tiles):
        tiles: Mapping[str, Tiling] = {
            **plan.tiles,
            **space.changes(plan.tiles, {g: configuration}),
        }
        if tiles == dict(plan.tiles):
            continue
        try:
            changed = replace(plan, tiles=tiles, order=())
            changed = with_slice_order(graph, changed, target) if plan.order else changed
            step_ms[write_tiling(anchor, tiles[anchor.name])] = step_milliseconds(
                graph, changed, target
            )
        except InputError:
            continue
    return step_ms


def explained_as_simulated(graph: Graph, plan: Plan, target: Cluster) -> dict[str, Any]:
    explanation = explain_op(graph, plan, target, OP)
    space = plan_space_of(graph, plan, target)
    g = next(g for g, group in enumerate(space.groups) if OP in group.ops)
    expected = other_steps(graph, plan, target, g)
    assert explanation["base"]["step_ms"] == pytest.approx(
        step_milliseconds(graph, plan, target), abs=1e-6
    )
    assert explanation["timed"] == len(expected)
    rows = explanation["alternatives"]
    best = sorted(expected.values())[:5]
    assert [row["step_ms"] for row in rows] == pytest.approx(best, abs=1e-6)
    for row in rows:
        assert row["step_ms"] == pytest.approx(expected[row["tiles"]], abs=1e-6)
        difference = row["step_ms"] - explanation["base"]["step_ms"]
        assert row["difference_ms"] == pytest.approx(difference, abs=2e-6)
    return explanation


@pytest.mark.parametrize("sync", every_sync())
def test_every_sync_kind(graph: Graph, target: Cluster, sync: str) -> None:
    plan = plan_for(graph, target, "data", sync=sync)
    explanation = explained_as_simulated(graph, plan, target)
    assert explanation["timed"] > 2
    assert bool(explanation["simulated"]) == any(
        "simulated" in note for note in explanation["notes"]
    )


@pytest.mark.parametrize("sync", every_sync())
def test_the_page_says_the_same(graph: Graph, target: Cluster, sync: str) -> None:
    plan = plan_for(graph, target, "data", sync=sync)
    timeline = simulate_steps(graph, plan, target)
    space = plan_space_of(graph, plan, target)
    number = {op.name: i for i, op in enumerate(graph.ops)}
    groups = describe_alternatives(plan, timeline, None, 1000.0, lambda step: None)
    assert len(groups) == len(space.groups)
    for group in groups:
        g = next(g for g, x in enumerate(space.groups) if number[x.name] == group["anchor"])
        expected, base = other_steps(graph, plan, target, g), step_milliseconds(graph, plan, target)
        assert group["alone_ms"] == pytest.approx(base, abs=1e-6)
        assert (" were simulated: " in group["sentence"]) == bool(group["simulated"])
        for row in group["alternatives"]:
            difference = expected[row["tiles"]] - base
            assert row["difference_ms"] == pytest.approx(difference, abs=2e-6)


@pytest.mark.parametrize("schedule", ["", *NAMES, f"{THREADED}:2"])
def test_every_schedule(graph: Graph, schedule: str) -> None:
    """Schedules of two stages of two devices each, and the schedule `threaded`, whose steps overlap."""
    target = cluster("p100:1x4")
    plan = plan_for(graph, target, "data", sync="allreduce")
    if schedule.startswith(THREADED):
        plan = replace(plan, schedule=schedule)
    else:
        plan = staged(graph, plan, schedule)
    explanation = explained_as_simulated(graph, plan, target)
    assert explanation["timed"]
    assert explanation["simulated"] is not None
    assert explanation["overlapping"] == is_asynchronous(plan)


def staged(graph: Graph, plan: Plan, schedule: str) -> Plan:
    names = [op.name for op in graph.ops]
    stages = cut_stages(graph, [names[len(names) // 2]])
    tiles: dict[str, Tiling] = {}
    for s, stage in enumerate(stages):
        for name in stage:
            dims = graph.op(name).space.dims
            able = [d for d, dim in enumerate(dims) if dim.name == "n" and dim.size > 1]
            cuts = tuple(even_cuts(dim.size, 1 + (d in able)) for d, dim in enumerate(dims))
            tiles[name] = Grid(cuts, (2 * s, 2 * s + 1), 1 if able else 2)
    return replace(
        plan, tiles=tiles, stages=stages, schedule=schedule, microbatches=4, bn="microbatch",
        batch=4 * graph.batch, split_backward=schedule_splits_backward(schedule),
    )  # fmt: skip


def test_alexnet_with_servers() -> None:
    """With parameter servers, the best alternative is faster than the plan, and the explanation says so."""
    w = zoo.load("alexnet", batch=64)
    graph = capture(w.model, w.batch, w.loss, name=w.name)
    target = cluster("p100:1x4")
    plan = plan_for(graph, target, "data", sync="ps")
    explanation = explain_op(graph, plan, target, "classifier.1")
    first = explanation["alternatives"][0]
    assert explanation["base"]["step_ms"] == step_milliseconds(graph, plan, target)
    assert first["difference_ms"] < -10
    assert explanation["simulated"] is None


def test_what_the_evaluator_refuses_is_simulated(
    graph: Graph, target: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = replace(plan_for(graph, target, "data", sync="ps"), recompute=((graph.ops[0].name,),))
    explanation = explain_op(graph, plan, target, OP)
    show_op(explanation)
    output = " ".join(capsys.readouterr().out.split())
    assert "other ways to split this group were simulated" in output
    assert "note: all times are simulated: the evaluator does not time recomputation" in output


def test_only_so_many_are_simulated(
    graph: Graph, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(plan_for(graph, target, "data", sync="ps"), recompute=((graph.ops[0].name,),))
    every = explain_op(graph, plan, target, OP)
    monkeypatch.setattr(plan_timers.SimulatorTimer, "max_alternatives", 2)
    explanation = explain_op(graph, plan, target, OP)
    assert explanation["timed"] == 2
    assert explanation["excluded"]["untimed"] == every["timed"] - 2
