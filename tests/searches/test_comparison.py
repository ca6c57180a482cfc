"""The rows of `compare`, speedups over data parallelism, and the predicted details of one plan."""

from __future__ import annotations

from typing import Any

import pytest

from raddle import zoo
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.searches.baselines import BASELINES
from raddle.searches.comparison import compare, plan_and_predict, speedup_over_data
from raddle.searches.planning import plan_for
from raddle.searches.predict import details, simulate_steps
from raddle.searches.settings import Settings

KEYS = {
    "method", "step_ms", "samples_per_s", "speedup", "comm_bytes", "peak_bytes", "imbalance", "search_s",
    "fits", "bn", "sync", "precision", "optimizer", "schedule", "stages", "microbatches",
}  # fmt: skip


@pytest.fixture(scope="module")
def graph():
    w = zoo.load("lenet-tiny")
    return capture(w.model, w.batch, w.loss, name=w.name)


def test_a_row_a_method(graph) -> None:
    progress: list[Any] = []
    rows = compare(graph, cluster("p100:1x2"), list(BASELINES), on_progress=progress.append)
    assert [row["method"] for row in rows] == list(BASELINES) == [h["step"] for h in progress]
    data = rows[0]
    for row in rows:
        assert set(row) == KEYS | {"lower_bound_ms"}
        assert 0 < row["lower_bound_ms"] <= row["step_ms"]
        assert row["speedup"] == pytest.approx(data["step_ms"] / row["step_ms"])
        assert row["samples_per_s"] == pytest.approx(1e3 * graph.batch / row["step_ms"])
        assert row["fits"]
        assert row["imbalance"] >= 1
        assert row["comm_bytes"] > 0


def test_methods_that_cannot_be_applied_stay(graph) -> None:
    rows = compare(graph, cluster("p100:4x4"), ["data", "model"])
    assert set(rows[0]) == KEYS | {"error"}
    assert rows[0]["step_ms"] is None
    assert "batch of 8" in rows[0]["error"]
    assert rows[1]["speedup"] is None
    assert rows[1]["step_ms"] > 0


def test_one_plan_has_the_speedup_that_it_has_among_others(graph) -> None:
    on = cluster("p100:1x2")
    for row in compare(graph, on, list(BASELINES)):
        speedup = speedup_over_data(plan_and_predict(graph, on, row["method"]))
        assert speedup == pytest.approx(row["speedup"])


def test_a_pipeline_is_held_against_data_parallelism_with_its_whole_batch(graph) -> None:
    on = cluster("p100:1x2")
    options = Settings(budget=0.2, schedule="1f1b", microbatches=4)
    pipeline = plan_and_predict(graph, on, "pipeline", settings=options)
    data = plan_and_predict(graph, on, "data", settings=Settings(bn="global"))
    expected = data.row["step_ms"] / pipeline.row["step_ms"]
    assert speedup_over_data(pipeline) == pytest.approx(expected)


def test_what_data_parallelism_cannot_do_has_no_speedup(graph) -> None:
    many = cluster("p100:4x4")  # there are 8 samples
    assert speedup_over_data(plan_and_predict(graph, many, "model")) is None
    overlapping = Settings(budget=0.2, schedule="pipedream")  # it trains with older weights
    pipeline = plan_and_predict(graph, cluster("p100:1x2"), "pipeline", settings=overlapping)
    assert speedup_over_data(pipeline) is None


def test_data_parallelism_moves_what_a_ring_moves(graph) -> None:
    row = compare(graph, cluster("p100:1x4"), ["data"])[0]
    parameters = sum(p.nbytes for p in graph.parameters)
    loss = 4 * 3 * (4 + 4)  # each device sends its sum of losses and its count to each other
    assert 0 <= row["comm_bytes"] - 2 * 3 * parameters <= loss


def test_predicted_metrics_are_in_the_plan(graph) -> None:
    plan, row, _ = plan_and_predict(graph, cluster("local:2"), "owt")
    assert plan.predicted == {key: row[key] for key in plan.predicted}
    assert plan.predicted["step_ms"] > 0


def test_details(graph) -> None:
    on = cluster("p100:1x2")
    timeline = simulate_steps(graph, plan_for(graph, on, "owt"), on)
    prediction = details(timeline, largest=3)
    assert len(prediction["devices"]) == 2
    for device in prediction["devices"]:
        parts = [device[f"{name}_ms"] for name in ("compute", "exposed", "idle")]
        assert sum(parts) == pytest.approx(1e3 * timeline.step_ends[-1] / 1e9 / 3)
        assert device["peak_bytes"] <= prediction["peak_bytes"]
    sizes = [row["bytes"] for row in prediction["transfers"]]
    assert sizes == sorted(sizes, reverse=True)
    everything = details(timeline, largest=10**6)["transfers"]
    assert sum(row["bytes"] for row in everything) == prediction["comm_bytes"]
