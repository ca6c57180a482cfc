"""Every baseline's plan is legal and can be written to a file and read again.

tests/runtime shows that the plans train correctly.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from raddle import zoo
from raddle.clusters import Cluster, cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.notation import write_tiling
from raddle.plans.plan_file import from_dict, to_dict
from raddle.plans.tiling import Irregular
from raddle.program.lower import lower
from raddle.program.program import Move
from raddle.searches.baselines import BASELINES
from raddle.searches.planning import plan_for

TINY = [name for name in zoo.names() if name.endswith("-tiny")]


@cache
def captured(name: str, batch: int | None = None) -> Graph:
    w = zoo.load(name, batch=batch)
    return capture(w.model, w.batch, w.loss, name=name)


def text(graph: Graph, on: Cluster, method: str, op: str) -> str:
    return write_tiling(graph.op(op), BASELINES[method](graph, on)[op])


@pytest.mark.parametrize("name", TINY)
def test_plans_are_legal_on_one_device_and_on_four_and_survive_a_file(name: str) -> None:
    # Inception: with the zoo's batch of 4, each of 4 devices would have one value per channel.
    graph = captured(name, batch=8 if name == "inception_v3-tiny" else None)
    for on in (cluster("p100:1x1"), cluster("p100:2x2")):
        for method in BASELINES:
            plan = plan_for(graph, on, method, model=name)
            lower(graph, plan)
            data = json.loads(json.dumps(to_dict(plan, graph)))
            assert from_dict(data, graph) == plan


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in zoo.names() if name not in TINY])
def test_plans_of_the_models_themselves_are_legal(name: str) -> None:
    graph = captured(name)
    for devices in (1, 2, 3, 4):
        for method in BASELINES:
            lower(graph, plan_for(graph, cluster(f"p100:1x{devices}"), method))


@pytest.mark.parametrize(
    ("method", "conv", "bn", "running", "fc", "loss"),
    [
        ("data", "n/4 @0-3", "n/4 @0-3", "x4 @0-3", "n/4 @0-3", "x4 @0-3"),
        ("model", "c/4 @0-3", "c/4 @0-3", "c/4 @0-3", "c/4 @0-3", "@0"),
        ("owt", "n/4 @0-3", "n/4 @0-3", "x4 @0-3", "c/4 @0-3", "x4 @0-3"),
        ("layerwise", "@0", "@0", "@0", "@3", "@3"),
        ("spatial", "h/2 w/2 @0-3", "h/2 w/2 @0-3", "x4 @0-3", "n/4 @0-3", "x4 @0-3"),
        ("filter-horizontal", "c/4 @0-3", "c/4 @0-3", "c/4 @0-3", "c/4 @0-3", "@0"),
        ("filter-incremental", "@0", "@0", "@0", "@3", "@3"),
        ("channel-incremental", "@0", "@0", "@0", "@3", "@3"),
    ],
)
def test_what_methods_do_with_resnet(
    method: str, conv: str, bn: str, running: str, fc: str, loss: str
) -> None:
    graph, on = captured("resnet50-tiny"), cluster("p100:1x4")
    ops = ("conv1", "bn1", "bn1.running", "fc", "cross_entropy.div")
    assert tuple(text(graph, on, method, op) for op in ops) == (conv, bn, running, fc, loss)


@pytest.mark.parametrize("name", ["resnet50-tiny", "gpt-tiny", "rnnlm-tiny", "nmt-tiny"])
def test_data_parallelism_sends_no_activations(name: str) -> None:
    """Six samples on four devices, in models in which a reshape joins samples and tokens, too."""
    graph = captured(name, 6)
    program = lower(graph, plan_for(graph, cluster("p100:1x4"), "data"))
    moves = [i for i in program.instructions if isinstance(i, Move)]
    assert {move.kind for move in moves} <= {"partial", "partial gradient"}


def test_one_weird_trick_without_convolutions_is_model_parallelism() -> None:
    graph, on = captured("mlp-tiny"), cluster("p100:1x2")
    assert BASELINES["owt"](graph, on)["layers.0"] == BASELINES["model"](graph, on)["layers.0"]


def test_what_depends_on_no_sample_is_computed_where_it_is_read() -> None:
    graph, on = captured("gpt-tiny"), cluster("p100:1x2")
    positions = next(op.name for op in graph.ops if "wpe.weight" in op.inputs)
    assert text(graph, on, "data", positions) == "x2 @0-1"
    assert text(graph, on, "model", positions) == "s/2 @0-1"
    assert text(graph, on, "layerwise", positions) == "@0"


def test_a_part_may_begin_inside_of_a_filter() -> None:
    graph, on = captured("vgg16-tiny"), cluster("p100:1x4")
    tiles = BASELINES["channel-incremental"](graph, on)
    cut = [op for op in graph.ops if isinstance(tiles[op.name], Irregular)]
    assert cut
    for op in cut:
        assert {"c", "k"} <= {dim.name for dim in op.space.dims}
        assert any(op.space.is_partial(box) for box in tiles[op.name].boxes)


def test_a_batch_smaller_than_the_devices() -> None:
    graph, on = captured("resnet50-tiny"), cluster("p100:4x4")
    for method in ("data", "owt"):
        with pytest.raises(InputError, match="batch of 8 cannot be split over 16 devices"):
            plan_for(graph, on, method)
    plan_for(graph, on, "spatial")


def test_unknown_names() -> None:
    graph, on = captured("mlp-tiny"), cluster("local:2")
    for arguments in (
        {"method": "dta"},
        {"method": "data", "bn": "no"},
        {"method": "data", "sync": "no"},
    ):
        with pytest.raises(InputError, match="choose"):
            plan_for(graph, on, **arguments)


def test_a_plan_says_all_that_is_needed_to_read_it_again() -> None:
    graph, on = captured("lenet-tiny"), cluster("local:2")
    plan = plan_for(graph, on, "data", model="lenet-tiny", bn="global", sync="server")
    assert plan.fingerprint == graph.fingerprint()
    assert (plan.model, plan.method, plan.batch, plan.devices) == ("lenet-tiny", "data", 8, 2)
    assert (plan.bn, plan.sync, plan.dtype) == ("global", "server", "float32")
    assert Cluster.from_dict(plan.cluster) == on
