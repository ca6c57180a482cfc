"""No plan is faster than the lower bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import random_plan
from small import small

from raddle import zoo
from raddle.clusters import Cluster, Device, Link, cluster
from raddle.graph.capture import capture
from raddle.program.lower import lower
from raddle.searches.bounds import lower_bound
from raddle.searches.planning import plan_for
from raddle.simulation.timeline import simulate

MODELS = ("lenet-tiny", "mlp-tiny", "gpt-tiny", "resnet110-tiny", "unet-tiny", "rnnlm-tiny")


def mixed() -> Cluster:
    """Two fast and two slow devices, three to one."""
    fast = Device("fast", 0, {"float32": 9e12}, 16 * 10**9, 600e9)
    slow = Device("slow", 0, {"float32": 3e12}, 16 * 10**9, 200e9, overhead=15e-6)
    return Cluster("mixed", (fast, fast, slow, slow), (Link(20e9, 5e-6),), (None,))


MACHINES = {name: cluster(name) for name in ("p100:1x4", "p100:2x2", "local:4")} | {
    "mixed": mixed()
}


@given(st.sampled_from(MODELS), st.sampled_from(sorted(MACHINES)), st.integers(0, 2**30))
def test_random_plans_are_no_faster(model: str, machine: str, seed: int) -> None:
    graph, on = small(model)[1], MACHINES[machine]
    plan = random_plan(graph, 4, seed, bn="global", split_backward=False, recompute=())
    bound = lower_bound(graph, on)
    assert bound.seconds <= simulate(lower(graph, plan), on).total_seconds


def test_data_parallelism_on_a_compute_bound_network_is_close_to_it() -> None:
    w = zoo.load("vgg16", batch=512)
    graph = capture(w.model, w.inputs, targets=w.targets, loss=w.loss, name=w.name)
    on = cluster("p100:4x4")
    bound = lower_bound(graph, on)
    step = simulate(lower(graph, plan_for(graph, on, "data")), on).total_seconds
    assert 0.97 * step <= bound.seconds == bound.work <= step


def test_one_device_alone_needs_no_message() -> None:
    graph, on = small("lenet-tiny")[1], cluster("p100:1x1")
    step = simulate(lower(graph, plan_for(graph, on, "data")), on).total_seconds
    bound = lower_bound(graph, on)
    assert bound.seconds == pytest.approx(max(bound.work, bound.path, bound.alone))
    assert 0.5 * step <= bound.seconds <= step
