"""Overlapping steps: losses and parameters equal those of a serial replay with the same weight versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raddle import zoo
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.plans import plan_file
from raddle.searches.planning import build_plan, run_method
from raddle.searches.settings import Settings
from raddle.verification.verify_plan import verify

STEPS = 20


def save_plan(
    path: Path, name: str, method: str, schedule: str, devices: int, batch: int = 4, micro: int = 1
) -> str:
    work = zoo.load(name, batch=batch)
    graph = capture(work.model, work.batch, work.loss, name=name)
    target_cluster = cluster(f"local:{devices}")
    settings = Settings(schedule=schedule, budget=0.4)
    if method == "pipeline":
        settings = replace(settings, stages=devices, microbatches=micro)
    result = run_method(graph, target_cluster, method, settings)
    plan = build_plan(graph, target_cluster, method, result, settings, model=name)
    plan_file.save(
        plan, result.pipeline.graph if result.pipeline is not None else graph, path / "plan.json"
    )
    return str(path / "plan.json")


@pytest.mark.parametrize(
    ("name", "method", "schedule", "devices", "micro"),
    [
        ("vgg16-tiny", "pipeline", "pipedream", 4, 1),
        pytest.param("unet-tiny", "pipeline", "pipedream", 3, 1, marks=pytest.mark.slow),
        ("gpt-tiny", "pipeline", "2bw", 3, 3),  # its first and last stage share a weight
        pytest.param("resnet110-tiny", "pipeline", "2bw", 2, 2, marks=pytest.mark.slow),
        ("vgg16-tiny", "hypergraph-coarse", "threaded:3", 4, 1),
        pytest.param("vgg16-tiny", "hypergraph-fine", "threaded:3", 2, 1, marks=pytest.mark.slow),
        pytest.param(
            "resnet110-tiny", "hypergraph-fine", "threaded:2", 4, 1, marks=pytest.mark.slow
        ),
        ("vgg16-tiny", "hypergraph-coarse", "threaded:3:greedy", 4, 1),
        ("resnet110-tiny", "hypergraph-fine", "threaded:4:greedy", 2, 1),
        pytest.param(
            "rnnlm-tiny", "hypergraph-coarse", "threaded:3:greedy", 2, 1, marks=pytest.mark.slow
        ),
    ],
)
def test_equals_a_serial_replay(
    name: str, method: str, schedule: str, devices: int, micro: int, tmp_path: Path
) -> None:
    path = save_plan(tmp_path, name, method, schedule, devices, 4, micro)
    result = verify(path, threads=True, steps=STEPS)
    assert result["failure"] is None
    assert result["holds"], [check for check in result["checks"] if not check["holds"]]
    assert {check["what"] for check in result["checks"]} >= {"loss", "parameters"}
    assert max(most for _, most in result["staleness"].values()) >= 1


def test_staleness_of_pipedream_falls_from_stage_to_stage(tmp_path: Path) -> None:
    path = save_plan(tmp_path, "vgg16-tiny", "pipeline", "pipedream", 4)
    stale = verify(path, threads=True, steps=STEPS)["staleness"]
    first, last = next(iter(stale.values())), list(stale.values())[-1]
    assert (first[1], last[1]) == (3, 0)


def test_on_processes(tmp_path: Path) -> None:
    path = save_plan(tmp_path, "vgg16-tiny", "hypergraph-coarse", "threaded:3:greedy", 2)
    assert verify(path, steps=STEPS)["holds"]


def test_greedy_needs_parameters_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is on several devices"):
        verify(save_plan(tmp_path, "vgg16-tiny", "data", "threaded:2:greedy", 2), threads=True)
