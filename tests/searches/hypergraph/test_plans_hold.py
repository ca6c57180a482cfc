"""Plans of the hypergraph-* methods train like the plain module: losses, gradients, parameters, bytes.

The slow test runs them on real processes.
"""

from __future__ import annotations

import pathlib
from functools import cache

import pytest

from raddle.api.loading import capture_model
from raddle.clusters import cluster
from raddle.graph.graph import Graph
from raddle.plans import plan_file
from raddle.searches.planning import plan_for
from raddle.searches.registry import SEARCHES
from raddle.verification.verify_plan import verify

MODELS = ("vgg16-tiny", "resnet110-tiny", "unet-tiny", "inception_v3-tiny", "rnnlm-tiny")
RANKS = (2, 3, 4)
PARTITIONS = [name for name in SEARCHES if name.startswith("hypergraph")]


@cache
def captured(model: str) -> Graph:
    # Two samples for each of 4 ranks: PyTorch's batch norm refuses a single value per channel.
    return capture_model(model, 8)


def saved_plan(model: str, method: str, ranks: int, folder: pathlib.Path) -> str:
    graph = captured(model)
    plan = plan_for(graph, cluster(f"local:{ranks}"), method, model=model, budget=0.4)
    path = folder / f"{model}-{method}-{ranks}.json"
    plan_file.save(plan, graph, path)
    return str(path)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("method", PARTITIONS)
@pytest.mark.parametrize("model", MODELS)
def test_partitions_train_like_the_plain_module(
    model: str, method: str, ranks: int, tmp_path: pathlib.Path
) -> None:
    assert verify(saved_plan(model, method, ranks, tmp_path), steps=2, threads=True)["holds"]


@pytest.mark.slow
@pytest.mark.parametrize("method", PARTITIONS)
def test_on_real_processes(method: str, tmp_path: pathlib.Path) -> None:
    assert verify(saved_plan("vgg16-tiny", method, 2, tmp_path), steps=2)["holds"]
