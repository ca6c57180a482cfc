"""Experiments plan for the optimizer with which their ranks train; `parallelize` refuses another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from experiments import sync_timing, timing_rank
from experiments.gems_unet import training as unet_training
from experiments.gems_unet import training_rank as unet_rank
from experiments.gems_unet.methods import PlannedMethod
from experiments.thesis import lab_plans, training, training_task
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans import plan_file
from raddle.plans.optimizers import optimizer_info
from raddle.runtime.optimizer_size import state_elements
from raddle.runtime.tile_optimizer import MakeOptimizer


@pytest.fixture(scope="module")
def graph() -> Graph:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        batch = torch.zeros(8, 8), torch.zeros(8, 4)
    return capture(model, batch, supervised(nn.functional.mse_loss), name="small")


def state_of(make: MakeOptimizer) -> int | None:
    return state_elements(make, nn.Linear(2, 2))


def planned_state(name: str) -> int:
    return optimizer_info(name).state_elements


@pytest.mark.parametrize("variant", [sync_timing.DDP, sync_timing.SyncVariant("plan", "p3")])
def test_sync_kinds(graph: Graph, variant: sync_timing.SyncVariant) -> None:
    plan = sync_timing.data_parallel_plan(graph, 2, variant)
    assert planned_state(plan.optimizer) == state_of(timing_rank.sgd)


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_of_the_thesis(graph: Graph, ranks: int) -> None:
    plans = lab_plans.plans_by_row(graph, cluster(f"local:{ranks}"), budget=0.1)
    assert {planned_state(p.optimizer) for p in plans.values()} == {state_of(timing_rank.sgd)}


def test_training_of_the_thesis(graph: Graph, tmp_path: Path) -> None:
    kinds = training._kinds(graph, 2, tmp_path)
    files = [kind for kind in kinds.values() if kind.endswith(".json")]
    planned = {planned_state(plan_file.read(file)["optimizer"]) for file in files}
    assert planned == {state_of(training_task.sgd)}


def test_training_of_the_unet(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sync_timing.data_parallel_plan(graph, 2, sync_timing.DDP)
    planned: list[int] = []

    def run_ranks(ranks: int, rate: None, argv: list[str]) -> None:
        request = unet_training.read_scratch(argv[-1])
        planned.extend(
            planned_state(plan_file.read(f)["optimizer"]) for f in request["plans"].values()
        )
        unet_training.write_scratch(request["out"], {})

    monkeypatch.setattr(unet_training, "run_ranks", run_ranks)
    unet_training.train(
        "small", {"data": PlannedMethod(graph, plan)}, ranks=2, side=8, blocks=1, steps=1
    )
    assert planned == [state_of(unet_rank._adam)]
