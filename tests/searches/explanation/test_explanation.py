"""The numbers of `raddle explain` are those of simulations, for the plan and for its alternatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_plans import random_plan, sync_texts
from small_models import small

from raddle import zoo
from raddle.clusters import Cluster, cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.notation import write_tiling
from raddle.plans.plan import Plan
from raddle.plans.tiling import Irregular
from raddle.program.lower import lower
from raddle.reports.explanation import describe_changes, sentences
from raddle.searches.baselines import BASELINES
from raddle.searches.bounds import lower_bound
from raddle.searches.explanation import plan_timers
from raddle.searches.explanation.alternatives import candidate_configurations
from raddle.searches.explanation.explain_op import explain_op, find_ops
from raddle.searches.explanation.explain_plan import explain_plan
from raddle.searches.plan_space import PlanSpace
from raddle.searches.planning import plan_for
from raddle.searches.predict import details, predicted_metrics, simulate_steps
from raddle.searches.purposes import bytes_by_purpose
from raddle.searches.settings import Settings
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.timeline import simulate

MACHINE = "p100:1x4"


def captured(name: str, batch: int | None = None) -> Graph:
    w = zoo.load(name, batch=batch)
    return capture(w.model, w.batch, w.loss, name=w.name)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return captured("lenet-tiny")


@pytest.fixture(scope="module")
def target() -> Cluster:
    return cluster(MACHINE)


@pytest.fixture(scope="module")
def owt(graph: Graph, target: Cluster) -> Plan:
    return plan_for(graph, target, "owt")


def one_step(graph: Graph, plan: Plan, target: Cluster) -> float:
    """Simulate a single step; return milliseconds."""
    return int(simulate(lower(graph, replace(plan, steps=1)), target).end.max()) / 1e6


# -- a whole plan ----------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_prediction_and_its_details(
    graph: Graph, target: Cluster, owt: Plan
) -> None:
    explanation = explain_plan(graph, owt, target)
    for side, plan in (("plan", owt), ("data", plan_for(graph, target, "data"))):
        timeline = simulate_steps(graph, plan, target)
        metrics, rows = explanation[side], details(timeline)["devices"]
        for key in ("step_ms", "samples_per_s", "comm_bytes", "peak_bytes", "imbalance", "fits"):
            assert metrics[key] == predicted_metrics(timeline)[key]
        for key, ms in metrics["average"].items():
            assert ms == pytest.approx(sum(row[key] for row in rows) / len(rows))
        assert metrics["fullest"]["peak_bytes"] == metrics["peak_bytes"]
        assert metrics["fullest"]["memory_bytes"] == target.devices[0].memory
    assert explanation["speedup"] == explanation["data"]["step_ms"] / explanation["plan"]["step_ms"]
    assert explanation["search"] is None


@pytest.mark.parametrize("method", BASELINES)
def test_bytes_by_purpose_add_up(graph: Graph, target: Cluster, method: str) -> None:
    timeline = simulate_steps(graph, plan_for(graph, target, method), target)
    assert sum(bytes_by_purpose(timeline.program).values()) == timeline.comm_bytes


@given(st.integers(0, 10**6), sync_texts(4), st.integers(1, 3), st.integers(0, 2))
def test_bytes_of_any_plan_add_up(seed: int, sync: str, microbatches: int, lacking: int) -> None:
    """Also with slices of different sizes, and with micro-batches of different sizes."""
    graph = small("mlp-tiny")[1]
    batch = microbatches * graph.batch - lacking
    plan = random_plan(graph, 4, seed, sync=sync, microbatches=microbatches, batch=batch)
    timeline = simulate_steps(graph, plan, cluster(MACHINE))
    assert sum(bytes_by_purpose(timeline.program).values()) == timeline.comm_bytes


def test_bytes_of_buffers_and_statistics_add_up(target: Cluster) -> None:
    graph = captured("resnet110-tiny")
    for method, bn in (("data", "global"), ("layerwise", "local"), ("spatial", "global")):
        timeline = simulate_steps(graph, plan_for(graph, target, method, bn=bn), target)
        assert sum(bytes_by_purpose(timeline.program).values()) == timeline.comm_bytes


def test_data_parallel_sends_parameters_alone(graph: Graph, target: Cluster) -> None:
    explanation = explain_plan(graph, plan_for(graph, target, "data"), target)
    assert explanation["data"] == {**explanation["plan"], "same": True}
    assert explanation["speedup"] == 1
    sent = explanation["plan"]["bytes"]
    assert sent["parameters"] == 2 * 3 * sum(p.nbytes for p in graph.parameters)
    assert sent["activations"] == sent["gradients"] == sent["signals"] == 0


def test_data_parallel_has_the_settings_of_the_plan(
    graph: Graph, target: Cluster, owt: Plan
) -> None:
    changed = replace(owt, sync="server", optimizer="adam", microbatches=2, batch=16)
    same = replace(plan_for(graph, target, "data"), sync="server", optimizer="adam", microbatches=2)
    explanation = explain_plan(graph, changed, target)
    assert explanation["data"]["step_ms"] == 1e3 * simulate_steps(graph, same, target).step_seconds


def test_data_parallel_that_cannot_be_applied(graph: Graph) -> None:
    target = cluster("p100:4x4")
    explanation = explain_plan(graph, plan_for(graph, target, "model"), target)
    assert explanation["data"] is explanation["speedup"] is None
    assert "a batch of 8 cannot be split over 16 devices" in explanation["data_error"]
    assert explanation["data_error"] in sentences(explanation)[0]


def test_the_bound(graph: Graph, target: Cluster, owt: Plan) -> None:
    explanation = explain_plan(graph, owt, target)
    assert explanation["bound"]["ms"] == 1e3 * lower_bound(graph, target).seconds
    assert (
        explanation["bound"][f"{explanation['bound']['binding']}_ms"] == explanation["bound"]["ms"]
    )
    assert explanation["gap_ms"] == explanation["plan"]["step_ms"] - explanation["bound"]["ms"] > 0
    several = explain_plan(graph, replace(owt, microbatches=2), target)
    assert several["bound"] is several["gap_ms"] is None
    assert "2 micro-batches" in several["bound_error"]
    measured = explain_plan(graph, owt, target, Profile())
    assert measured["bound"] is None
    assert "measured operators" in sentences(measured)[2]


def test_the_critical_path_has_no_gaps(graph: Graph, target: Cluster, owt: Plan) -> None:
    timeline = simulate_steps(graph, owt, target)
    explanation = explain_plan(graph, owt, target)
    assert explanation["path_ms"] == pytest.approx(timeline.total_seconds * 1e3 / 3)
    assert sum(explanation["path_doing"].values()) == pytest.approx(explanation["path_ms"])
    times = [row["ms"] for row in explanation["path"]]
    assert times == sorted(times, reverse=True)
    assert len(times) == 5
    assert all(
        row["share"] == pytest.approx(row["ms"] / explanation["path_ms"])
        for row in explanation["path"]
    )


def test_a_larger_cluster_counts_as_far_as_it_is_used(
    graph: Graph, target: Cluster, owt: Plan
) -> None:
    assert explain_plan(graph, owt, cluster("p100:2x4")) == {
        **explain_plan(graph, owt, target),
        "cluster": "p100:2x4",
    }
    with pytest.raises(InputError, match="needs 4 devices, 'p100:1x2' has 2"):
        explain_plan(graph, owt, cluster("p100:1x2"))
    with pytest.raises(InputError, match="needs 4 devices, 'p100:1x2' has 2"):
        explain_op(graph, owt, cluster("p100:1x2"), "features.0")


def test_what_a_search_tried(graph: Graph, target: Cluster, owt: Plan) -> None:
    row = {"simulated": True, "fits": True, "peak_bytes": 10, "recompute": None}
    tried = [
        {**row, "name": "owt, improved", "step_ms": 2.0},
        {**row, "name": "data", "step_ms": 3.0},
        {**row, "name": "huge", "step_ms": 1.0, "fits": False, "peak_bytes": 2**40},
        {"name": "odd"}, 7, {"name": 3, "step_ms": 1.0}, {"name": "nan", "step_ms": float("nan")},
    ]  # fmt: skip
    predicted = {
        "step_ms": 2.0, "start": "owt, improved", "proposals": 9, "stopped": "budget", "tried": tried
    }  # fmt: skip
    search = explain_plan(graph, replace(owt, predicted=predicted), target)["search"]
    assert [(r["name"], r["taken"], r["difference"], r["fits"]) for r in search["tried"]] == [
        ("owt, improved", True, 0.0, True),
        ("data", False, 0.5, True),
        ("huge", False, -0.5, False),
    ]
    assert (search["start"], search["proposals"]) == ("owt, improved", 9)
    assert search["memory_bytes"] == [target.devices[0].memory] * 2


@pytest.mark.parametrize(
    "predicted",
    [{"tried": 3}, {"start": 3, "stopped": []}, {"start": "a", "stopped": "b", "tried": {"c": 1}}],
)
def test_predictions_that_no_search_wrote(
    graph: Graph, target: Cluster, owt: Plan, predicted: dict[str, Any]
) -> None:
    search = explain_plan(graph, replace(owt, predicted=predicted), target)["search"]
    assert search is None or search["tried"] == []


def test_the_words_have_the_numbers(graph: Graph, target: Cluster, owt: Plan) -> None:
    explanation = explain_plan(graph, owt, target)
    first, shares, bound, memory, path = sentences(explanation)
    assert first.startswith(f"{explanation['speedup']:.2f} x ")
    assert "synchronises" in first
    assert "of a step is computing" in shares
    assert f"{explanation['plan']['step_ms'] / explanation['bound']['ms']:.2f} x as long" in bound
    assert f"device, {explanation['plan']['fullest']['device']}, needs" in memory
    assert explanation["path"][0]["name"] in path


# -- one operator ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "method", "name", "settings"),
    [
        (MACHINE, "owt", "classifier.0", {}),
        (MACHINE, "data", "features.3", {"sync": "server"}),
        ("local:2", "spatial", "features.0", {"bucket": 0}),
        ("local:2", "channel-incremental", "features.3", {"optimizer": "adam"}),
    ],
)
def test_alternatives_take_what_simulating_them_takes(
    graph: Graph, machine: str, method: str, name: str, settings: dict[str, Any]
) -> None:
    target = cluster(machine)
    plan = replace(plan_for(graph, target, method), **settings)
    explanation = explain_op(graph, plan, target, name)
    assert explanation["base"]["step_ms"] == one_step(graph, plan, target)
    assert explanation["step_ms"] == 1e3 * simulate_steps(graph, plan, target).step_seconds
    expected = simulated_alternatives(graph, plan, target, name)
    assert explanation["timed"] == len(expected)
    assert explanation["faster"] == sum(
        ms < explanation["base"]["step_ms"] for ms in expected.values()
    )
    rows = explanation["alternatives"]
    assert [row["step_ms"] for row in rows] == sorted(expected.values())[:5]
    for row in rows:
        assert row["step_ms"] == expected[row["tiles"]]
        assert row["difference_ms"] == pytest.approx(
            row["step_ms"] - explanation["base"]["step_ms"]
        )
        if plan.sync == "allreduce":  # otherwise parameters are sent back after the last update
            assert sum(row["average"].values()) == pytest.approx(row["step_ms"])


def simulated_alternatives(
    graph: Graph, plan: Plan, target: Cluster, name: str
) -> dict[str, float]:
    """Simulate a step with every other configuration of a group; return milliseconds by anchor's tiles."""
    space = PlanSpace(graph, target, Settings(reduction=True))
    g = next(g for g, group in enumerate(space.groups) if name in group.ops)
    anchor = space.groups[g].members[0].op
    step_ms = {}
    for configuration in candidate_configurations(space, g, plan.tiles):
        tiles = {**plan.tiles, **space.changes(plan.tiles, {g: configuration})}
        if tiles != dict(plan.tiles):
            text = write_tiling(anchor, tiles[anchor.name])
            step_ms[text] = one_step(graph, replace(plan, tiles=tiles), target)
    return step_ms


def test_the_group_and_its_letters(graph: Graph, target: Cluster, owt: Plan) -> None:
    explanation = explain_op(graph, owt, target, "features.1")
    group = explanation["group"]
    assert (explanation["op"], group["anchor"], group["tiles"]) == (
        "features.1",
        "features.0",
        "n/4 @0-3",
    )
    assert [(m["name"], m["how"], m["ref"], m["follows"]) for m in group["members"]] == [
        ("features.0", "anchor", "", True),
        ("features.1", "after", "features.0", True),
    ]
    letters = {row["letter"]: (row["size"], row["kind"], row["parts"]) for row in group["letters"]}
    assert letters["n"] == (8, "sample", 4)
    assert letters["c"] == (3, "parameter", 1)
    assert letters["h"] == (16, "attribute", 1)
    why = {row["letter"]: row["why_not"] for row in group["letters"]}
    assert why == {
        "n": None, "c": None, "h": None, "w": None, "k": "it has extent 1",
        "R": "it is taken whole", "Q": "it is taken whole",
    }  # fmt: skip
    assert group["configuration"] == {"n": 4, "c": 1, "h": 1, "w": 1}
    assert explanation["notes"] == []


def test_tiles_that_are_no_configuration(graph: Graph) -> None:
    target = cluster("p100:1x2")
    plan = plan_for(graph, target, "data")
    space = PlanSpace(graph, target, Settings())
    op = graph.op("features.3")
    boxes = Irregular(tuple(plan.tiles[op.name].tiles))  # the same tiles, but not as a grid
    irregular = replace(plan, tiles={**plan.tiles, op.name: boxes})
    g = next(g for g, group in enumerate(space.groups) if op.name in group.ops)
    assert space.configuration_of(g, irregular.tiles) is None
    explanation = explain_op(graph, irregular, target, op.name)
    assert explanation["group"]["configuration"] is None
    assert "no configuration" in explanation["notes"][0]
    assert explanation["base"]["step_ms"] == one_step(graph, irregular, target)
    assert len(explanation["alternatives"]) == 5


def test_what_the_evaluator_does_not_know_is_said(graph: Graph, target: Cluster, owt: Plan) -> None:
    block = (("features.0", "features.1"),)
    changed = replace(owt, microbatches=2, batch=16, recompute=block, split_backward=True)
    explanation = explain_op(graph, changed, target, "features.0")
    what = "micro-batches and recomputation and a split backward"
    assert explanation["notes"] == [f"all times are simulated: the evaluator does not time {what}"]
    assert explanation["simulated"] == what
    assert explain_op(graph, owt, target, "features.0")["simulated"] is None


def test_what_does_not_fit_is_excluded(graph: Graph, target: Cluster, owt: Plan) -> None:
    peak = max(explain_plan(graph, owt, target)["plan"]["fullest"]["peak_bytes"], 1)
    small = replace(target, devices=tuple(replace(d, memory=peak) for d in target.devices))
    free, tight = (explain_op(graph, owt, c, "classifier.0") for c in (target, small))
    out = tight["excluded"]["memory"]
    assert free["excluded"]["memory"] is None
    assert tight["timed"] + out["count"] == free["timed"]
    assert out["least_bytes"] > out["memory_bytes"] == peak
    assert all(row["memory_bytes"] <= peak for row in tight["alternatives"])
    assert tight["base"] == free["base"]


def test_what_cannot_be_is_excluded_with_its_sentence(
    graph: Graph, target: Cluster, owt: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Evaluator.move

    def refuse(self: Evaluator, changes: Any) -> Any:
        tiling = changes.get("features.3") if len(changes) < len(graph.ops) else None
        if tiling is not None and len(set(tiling.devices)) < 4:
            raise InputError("four or nothing.")
        return move(self, changes)

    free = explain_op(graph, owt, target, "features.3")
    monkeypatch.setattr(Evaluator, "move", refuse)
    explanation = explain_op(graph, owt, target, "features.3")
    (row,) = explanation["excluded"]["refused"]
    assert row["reason"] == "four or nothing."
    assert row["count"] + explanation["timed"] == free["timed"]
    assert row["example"].count("@") == 1


def test_no_more_than_so_many_are_timed(
    graph: Graph, target: Cluster, owt: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = explain_op(graph, owt, target, "features.3")
    monkeypatch.setattr(plan_timers.EvaluatorTimer, "max_alternatives", 4)
    explanation = explain_op(graph, owt, target, "features.3")
    assert explanation["timed"] < 5 < every["timed"]
    assert explanation["excluded"]["untimed"] > 0
    assert every["excluded"]["untimed"] == 0


def test_what_changes_in_words(graph: Graph, target: Cluster, owt: Plan) -> None:
    explanation = explain_op(graph, owt, target, "classifier.0")
    base = explanation["base"]
    assert describe_changes(base, {**base, "difference_ms": 0.0}) == []
    busier = {**base, "difference_ms": 0.8, "link_ms": base["link_ms"] + 12}
    assert describe_changes(base, busier) == ["12.0 ms more messages on the busiest link"]


def test_more_devices_than_an_evaluator_is_for() -> None:
    graph, target = captured("lenet-tiny", batch=260), cluster("p100:65x4")
    explanation = explain_op(graph, plan_for(graph, target, "data"), target, "features.0")
    assert explanation["base"] is explanation["alternatives"] is None
    assert explanation["group"]["tiles"] == "n/260 @0-259"
    assert explanation["notes"] == ["alternatives are timed on up to 256 devices, the plan has 260"]


def test_an_operator_without_samples() -> None:
    graph, target = captured("gpt-tiny"), cluster("local:2")
    explanation = explain_op(graph, plan_for(graph, target, "data"), target, "slice")
    assert explanation["group"] is explanation["alternatives"] is None
    assert explanation["read_by"] == ["add"]
    assert "depends on no sample" in explanation["notes"][0]


# -- names -----------------------------------------------------------------------------------------


def test_names(graph: Graph) -> None:
    names = [op.name for op in graph.ops]
    assert [op.name for op in find_ops(graph, "features.1")] == ["features.1"]
    module = [op.name for op in find_ops(graph, "classifier")]
    assert module == [name for name in names if name.startswith("classifier.")]
    assert [op.name for op in find_ops(graph, "feat")] == [n for n in names if n.startswith("feat")]


def test_a_module_of_several_groups(graph: Graph, target: Cluster, owt: Plan) -> None:
    explanation = explain_op(graph, owt, target, "features")
    assert explanation["op"] == "features.0"
    assert "features.3" in explanation["others"]
    assert "features.1" not in explanation["others"]  # it follows features.0


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "\n",
        "features.9\n",
        "x" * 10_000,
        "[bold]features",
        "\x00",
        "../..",
        "%s{0}",
        "ß*?",
    ],
)
def test_hostile_names(graph: Graph, target: Cluster, owt: Plan, name: str) -> None:
    with pytest.raises(InputError, match=r"no operator .* in 'lenet-tiny'") as error:
        explain_op(graph, owt, target, name)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_close_names(graph: Graph) -> None:
    with pytest.raises(InputError, match="did you mean features"):
        find_ops(graph, "fetures.3")
