"""A plan with its graph, its cluster and its prediction: planned, saved, loaded, simulated, explained."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
from typing import Any

import pytest

import raddle
from raddle.api.plan_result import PlanResult
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.plan_file import read, to_dict


@pytest.fixture(scope="module")
def owt() -> PlanResult:
    return raddle.plan("lenet-tiny", 8, cluster="p100:1x2", method="owt")


@pytest.fixture(scope="module")
def pipeline() -> PlanResult:
    """Its plan is for the graph of one micro-batch."""
    return raddle.plan(
        "mlp-tiny", 8, cluster="p100:1x2", method="pipeline", budget=1, microbatches=2, stages=2
    )


def test_a_result_has_what_the_command_line_prints(owt: PlanResult) -> None:
    row = owt.row
    assert (owt.step_ms, owt.samples_per_s, owt.fits, owt.peak_bytes) == tuple(
        row[key] for key in ("step_ms", "samples_per_s", "fits", "peak_bytes")
    )
    assert owt.timeline.step_seconds * 1e3 == owt.step_ms
    assert row["speedup"] > 0
    assert owt.plan.predicted["step_ms"] == owt.step_ms


def test_a_cluster_is_a_text_a_file_or_an_object(tmp_path: pathlib.Path) -> None:
    from raddle.clusters.file import save_cluster

    cluster, path = raddle.cluster("p100:1x2"), tmp_path / "two.yaml"
    save_cluster(cluster.to_dict(), path)
    steps = [
        raddle.plan("mlp-tiny", 8, cluster=on, method="data").step_ms
        for on in ("p100:1x2", cluster, str(path), path)
    ]
    assert len(set(steps)) == 1
    with pytest.raises(raddle.InputError, match="the cluster is a int: name a preset"):
        raddle.plan("mlp-tiny", 8, cluster=2)  # type: ignore[arg-type]


def test_a_graph_is_planned_as_its_model_is(owt: PlanResult) -> None:
    again = raddle.plan(owt.graph, cluster="p100:1x2", method="owt")
    assert to_dict(again.plan, again.graph)["tiles"] == to_dict(owt.plan, owt.graph)["tiles"]
    assert again.step_ms == owt.step_ms


def test_pins_are_texts_or_a_mapping() -> None:
    pinned = [
        raddle.plan("mlp-tiny", 8, cluster="p100:1x2", method="optcnn", pins=pins)
        for pins in ({"*": "n/2"}, ["*=n/2"])
    ]
    assert pinned[0].plan.tiles == pinned[1].plan.tiles


@pytest.mark.parametrize("name", ["owt", "pipeline"])
def test_a_saved_plan_is_loaded_with_its_prediction(
    name: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    result, path = request.getfixturevalue(name), tmp_path / "plan.json"
    result.save(path)
    loaded = raddle.load_plan(path)
    assert to_dict(loaded.plan, loaded.graph) == read(path)
    assert loaded.graph == result.graph
    assert loaded.cluster == result.cluster
    different = ("speedup", "search_s")  # simulated at plan time, and timed
    for key in set(loaded.row) - {*different}:
        assert loaded.row[key] == result.row[key], key
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_plan_is_simulated_elsewhere(owt: PlanResult, tmp_path: pathlib.Path) -> None:
    owt.save(tmp_path / "plan.json")
    elsewhere = raddle.load_plan(tmp_path / "plan.json", cluster="p100:2x1")
    assert raddle.simulate(owt) is owt.timeline
    assert raddle.simulate(owt, cluster="p100:2x1").step_seconds * 1e3 == elsewhere.step_ms
    assert elsewhere.step_ms > owt.step_ms


def test_an_explanation_is_data_and_text(owt: PlanResult) -> None:
    whole, one = owt.explain(), owt.explain("classifier.0")
    assert whole["plan"]["step_ms"] == owt.step_ms
    assert "as fast as data parallel" in repr(whole)
    assert one["op"] == "classifier.0"
    assert "classifier.0 (linear): c/2" in repr(one)
    assert json.loads(json.dumps(one)) == one
    with pytest.raises(raddle.InputError, match="no operator 'nothing'"):
        owt.explain("nothing")


# -- a file whose model is not there -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "problem"),
    [("", "it names no model"), ("Sequential", "its model, 'Sequential', is not in the zoo")],
)
def test_a_file_without_its_model_asks_for_it(
    owt: PlanResult, name: str, problem: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "plan.json"
    owt.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": name}))
    result = raddle.load_plan(path)
    assert (result.step_ms, result.fits, result.cluster) == (owt.step_ms, True, owt.cluster)
    assert "355 us" in repr(result)
    assert "355 us" in result._repr_html_()
    uses = (
        lambda: result.plan, lambda: result.graph, lambda: result.timeline, result.explain,
        lambda: raddle.simulate(result), lambda: raddle.verify(result),
    )  # fmt: skip
    for use in uses:
        with pytest.raises(raddle.InputError) as error:
            use()
        assert problem in str(error.value)
        assert "model=..., example=..., loss=..." in str(error.value)
    result.save(tmp_path / "again.json")
    assert read(tmp_path / "again.json") == read(path)
    assert raddle.load_plan(path, model="lenet-tiny").plan.tiles == owt.plan.tiles


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("lenet-tiny", (1, 2)), "'lenet-tiny' has its own examples and loss"),
        (("lenet-tiny", 8, len), "'lenet-tiny' has its own examples and loss"),
        ((len,), "the model is a builtin_function_or_method: give an nn.Module"),
        (("lennet",), "no model 'lennet' in the zoo: did you mean lenet"),
    ],
)
def test_a_wrong_model_gets_one_sentence(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(raddle.InputError, match=sentence):
        raddle.plan(*arguments, cluster="local:2", method="data")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "dta"}, "no method 'dta': choose data"),
        ({"optimizer": "lion"}, "optimizer is 'lion': choose one of sgd"),
        ({"sync": "gossip"}, "sync is 'gossip'"),
        ({"pins": {"features": "4"}}, "'4' in the pin 'features=4' is no split"),
        ({"profile": "nowhere.json"}, "nowhere.json"),
    ],
)
def test_options_are_checked_before_anything_is_captured(
    options: dict[str, Any], sentence: str
) -> None:
    steps = list[Any]()
    with pytest.raises(raddle.InputError, match=sentence):
        raddle.plan(
            "mlp-tiny",
            8,
            cluster="local:2",
            **{"method": "data", **options},
            on_progress=steps.append,
        )
    assert not steps


def test_progress_is_reported() -> None:
    steps = list[Any]()
    raddle.plan("mlp-tiny", 8, cluster="p100:1x2", budget=0.5, on_progress=steps.append)
    assert steps[0]["step"] == "capturing mlp-tiny"
    assert len(steps) > 1


# -- short texts, and copies -------------------------------------------------------------------------


def test_texts_are_short(owt: PlanResult) -> None:
    objects = (owt, owt.plan, owt.graph, owt.cluster, owt.timeline, owt.timeline.program)
    for thing in objects:
        assert repr(thing).startswith(f"<{type(thing).__name__.removeprefix('Drawn')}")
        assert len(repr(thing)) < 150
    assert repr(owt.plan) == (
        "<Plan owt of lenet-tiny: 19 operators on 2 devices, batch 8, sync allreduce>"
    )
    assert repr(owt.graph) == "<Graph lenet-tiny: 19 operators, 10 parameters, batch 8>"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("name", ["owt", "pipeline"])
def test_all_of_a_result_is_pickled_and_copied(
    name: str, copied: Any, request: pytest.FixtureRequest
) -> None:
    result = request.getfixturevalue(name)
    again = copied(result)
    assert (again.plan, again.graph, again.cluster) == (result.plan, result.graph, result.cluster)
    assert again.row == result.row
    assert again.timeline.step_seconds == result.timeline.step_seconds
    # A pickled graph is without its module: it cannot be captured for the batch of data parallelism.
    assert again.explain()["plan"] == result.explain()["plan"]
    for part in (result.plan, result.graph, result.cluster):
        assert copied(part) == part
    assert copied(result.timeline).bytes_by_pair() == result.timeline.bytes_by_pair()


def test_a_copied_graph_can_be_captured_for_other_batches(owt: PlanResult) -> None:
    graph: Graph = copy.deepcopy(owt.graph)
    assert graph.for_batch(6).batch == 6
    with pytest.raises(raddle.InputError, match="cannot be captured again for 6"):
        pickle.loads(pickle.dumps(owt.graph)).for_batch(6)


def test_a_plan_says_where_the_results_attributes_are(owt: PlanResult) -> None:
    plan: Any = owt.plan
    for name in ("save", "step_ms", "explain", "_repr_html_"):
        assert hasattr(owt, name)
        with pytest.raises(AttributeError, match=f"the result of raddle.plan .* result.{name}"):
            getattr(plan, name)
    with pytest.raises(AttributeError, match="'Plan' object has no attribute 'tilings'"):
        plan.tilings  # noqa: B018
    assert not hasattr(Plan({}, 1), "__deepcopy__")
