"""`raddle report --plan` of a pipeline: metrics are for the whole batch; the page opens with the plan."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest

from raddle import zoo
from raddle.cli import main as cli
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans import plan_file
from raddle.plans.plan import Plan
from raddle.plans.schedules import NAMES
from raddle.reports.page.page_report import GivenPlan, build_page_data
from raddle.searches.planning import build_plan, run_method
from raddle.searches.settings import Settings

CLUSTER, BATCH, MICROBATCHES = "p100:1x2", 10, 4


@pytest.fixture(scope="module")
def graph() -> Graph:
    work = zoo.load("mlp-tiny", batch=BATCH)
    return capture(work.model, work.batch, work.loss, name=work.name)


def make_pipeline_plan(graph: Graph, schedule: str) -> tuple[Plan, Graph]:
    """Return a plan with two micro-batches of 3 samples and two of 2, and the graph of the largest."""
    stages = 4 if schedule == "interleaved" else 2
    chosen = Settings(schedule=schedule, stages=stages, microbatches=MICROBATCHES, budget=0.1)
    result = run_method(graph, cluster(CLUSTER), "pipeline", chosen)
    assert result.pipeline is not None
    plan = build_plan(graph, cluster(CLUSTER), "pipeline", result, chosen, model="mlp-tiny")
    return plan, result.pipeline.graph


def raddle_json(capsys: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["raddle", *arguments, "--json"])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("schedule", NAMES)
def test_every_row_is_of_the_plans_whole_batch(
    graph: Graph,
    schedule: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    plan, micro = make_pipeline_plan(graph, schedule)
    assert (plan.batch, plan.microbatches, micro.batch) == (BATCH, MICROBATCHES, 3)
    path, page = tmp_path / "mine.json", tmp_path / "page.html"
    plan_file.save(plan, micro, path)
    words = ("--plan", str(path), "--alternatives", "0", "-o", str(page))
    said = raddle_json(capsys, monkeypatch, "report", *words)
    assert said["batch"] == BATCH
    data, pipeline = said["methods"]
    assert (data["method"], pipeline["method"]) == ("data", "pipeline")
    for row in (data, pipeline):
        assert row["samples_per_s"] * row["step_ms"] / 1e3 == pytest.approx(BATCH)
    assert pipeline["speedup"] == pytest.approx(data["step_ms"] / pipeline["step_ms"])
    assert said["opens"] == "pipeline"


def test_the_page_says_the_same_as_the_other_verbs(
    graph: Graph, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    plan, micro = make_pipeline_plan(graph, "1f1b")
    path = tmp_path / "mine.json"
    plan_file.save(plan, micro, path)
    page = str(tmp_path / "page.html")
    data, pipeline = raddle_json(capsys, monkeypatch, "report", "--plan", str(path), "-o", page)[
        "methods"
    ]
    compared = raddle_json(
        capsys, monkeypatch, "compare", "mlp-tiny", "--batch", str(BATCH), "--cluster", CLUSTER,
        "--methods", "data",
    )  # fmt: skip
    assert compared[0]["step_ms"] == data["step_ms"]
    assert compared[0]["lower_bound_ms"] == data["lower_bound_ms"]
    simulated = raddle_json(capsys, monkeypatch, "simulate", str(path))
    assert (simulated["batch"], simulated["step_ms"]) == (BATCH, pipeline["step_ms"])
    explained = raddle_json(capsys, monkeypatch, "explain", str(path))
    assert explained["batch"] == BATCH
    assert explained["speedup"] == pytest.approx(pipeline["speedup"])
    verified = raddle_json(capsys, monkeypatch, "verify", str(path), "--threads", "--steps", "1")
    assert verified["batch"] == BATCH


def test_a_given_plan_opens_though_others_are_faster(graph: Graph) -> None:
    slow, _ = make_pipeline_plan(graph, "sequential")
    for order in ([slow], [slow, slow]):
        shown = build_page_data(
            graph, cluster(CLUSTER), [GivenPlan(plan) for plan in order], ("data",), alternatives=0
        ).json_data
        opened = shown["methods"][shown["opens"]]
        assert (opened["label"], opened["plan"]["schedule"]) == ("pipeline", "sequential")
        assert opened["torchrun"].endswith("-m raddle.runtime pipeline.json")
        assert [m["batch"] for m in shown["methods"]] == [BATCH] * len(shown["methods"])
        fastest = max(shown["methods"], key=lambda method: method["samples_per_s"])
        assert shown["methods"][shown["best"]] is fastest
        assert (
            plan_file.from_dict(opened["plan"], graph.for_batch(3)) == slow
        )  # what the page saves runs


def test_without_given_plans_the_best_opens(graph: Graph) -> None:
    shown = build_page_data(
        graph, cluster(CLUSTER), (), ("data", "model"), alternatives=0
    ).json_data
    assert shown["opens"] == shown["best"]
