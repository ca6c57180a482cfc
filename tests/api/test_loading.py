"""Models, plans and profiles by name."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import pytest

from raddle.api.clusters import cluster
from raddle.api.costs import load_optional_profile
from raddle.api.loading import capture_model, load_plan, load_plans
from raddle.api.planning import plan_for
from raddle.api.plans import save_plan
from raddle.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two plans of one model: by data, and in micro-batches."""
    folder = tmp_path_factory.mktemp("plans")
    on = cluster("p100:1x2")
    for name, microbatches in (("whole", 1), ("micro", 2)):
        graph = capture_model("mlp-tiny", 8 // microbatches)
        plan = plan_for(graph, on, "data", model="mlp-tiny", batch=8, sync="allreduce")
        save_plan(replace(plan, microbatches=microbatches), graph, folder / f"{name}.json")
    return folder


def test_a_model_has_the_batch_that_is_asked_for() -> None:
    assert capture_model("mlp-tiny", 6).batch == 6
    with pytest.raises(InputError, match="is too large: ask for at most 2147483648 samples"):
        capture_model("mlp-tiny", 2**31 + 1)


def test_a_plan_brings_its_model_and_its_cluster(folder: pathlib.Path) -> None:
    result = load_plan(folder / "micro.json")
    plan = result.plan
    assert (result.graph.batch, plan.batch, plan.microbatches) == (4, 8, 2)
    assert result.cluster == cluster("p100:1x2")
    assert load_plan(str(folder / "micro.json"), cluster="local:2").cluster.name == "local:2"


def test_plans_of_one_model_share_its_cluster(folder: pathlib.Path) -> None:
    paths = [str(folder / f"{name}.json") for name in ("micro", "whole")]
    results = load_plans(paths, cluster="local:2")
    assert [result.graph.batch for result in results] == [4, 8]
    assert [result.plan.microbatches for result in results] == [2, 1]
    assert {result.cluster.name for result in results} == {"local:2"}


def test_no_profile_is_none() -> None:
    assert load_optional_profile(None) is None
    with pytest.raises(InputError, match=r"'nowhere\.json'"):
        load_optional_profile("nowhere.json")
