"""Pins are kept, and mistakes in them are named."""

from __future__ import annotations

import pytest
from small_models import small

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.plans.notation import write_tiling
from raddle.searches.planning import plan_for


@pytest.mark.parametrize("method", ["data", "model", "optcnn", "flexflow", "auto"])
def test_a_pinned_operator_keeps_its_tiles(method: str) -> None:
    graph, on = small("lenet-tiny")[1], cluster("p100:1x4")
    conv = graph.ops[0].name
    plan = plan_for(graph, on, method, pins=[f"{conv}=n/2 h/2"], budget=3)
    assert write_tiling(graph.ops[0], plan.tiles[conv]) == "n/2 h/2 @0-3"


@pytest.mark.parametrize(
    ("pin", "reason"),
    [
        ("features", "is no pin"),
        ("=n/4", "is no pin"),
        ("*=", "is no pin"),
        ("*=n4", "is no split"),
        ("*=n/0", "is no split"),
        ("*=n/2 n/2", "splits a letter twice"),
        ("*=n/2 @0", "2 parts on 1 devices"),
        ("nothing.*=n/2", "matches no operator"),
        ("*=x/2", "splits x, but"),
        ("*=n/1000", "into 1000 parts"),
        ("conv1=n/8", "needs 8 devices and the cluster has 4"),
        ("conv1=n/2 @7-8", "needs 9 devices and the cluster has 4"),
    ],
)
def test_mistakes_get_a_sentence(pin: str, reason: str) -> None:
    graph, on = small("lenet-tiny")[1], cluster("p100:1x4")
    pin = pin.replace("conv1", graph.ops[0].name)
    with pytest.raises(InputError, match=reason):
        plan_for(graph, on, "data", pins=[pin])
