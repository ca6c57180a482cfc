"""No plan is faster than the lower bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_plan, sync_texts
from small_models import small
from torch import Tensor, nn

from raddle import zoo
from raddle.clusters import Cluster, Device, Link, cluster
from raddle.costs.profile import Profile
from raddle.graph.capture import capture
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.plans.tiling import whole_tiling
from raddle.program.lower import lower
from raddle.searches.bounds import lower_bound, why_unbounded
from raddle.searches.comparison import plan_and_predict
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps
from raddle.searches.settings import Settings
from raddle.simulation.timeline import simulate

MODELS = ("lenet-tiny", "mlp-tiny", "gpt-tiny", "resnet110-tiny", "unet-tiny", "rnnlm-tiny")


def mixed() -> Cluster:
    """Two fast and two slow devices, with speeds of three to one."""
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


@settings(max_examples=20)
@given(st.sampled_from(["lenet-tiny", "mlp-tiny"]), st.integers(0, 2**30), sync_texts(4))
def test_nor_are_steps_that_follow_each_other(model: str, seed: int, sync: str) -> None:
    graph, on = small(model)[1], MACHINES["local:4"]
    more = {"split_backward": False, "recompute": (), "sync": sync}
    plan = random_plan(graph, 4, seed, bn="global", **more)
    assert lower_bound(graph, on).seconds <= simulate_steps(graph, plan, on).step_seconds


class Prepared(nn.Module):
    """A model that begins with 20 operators that depend on no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            x = torch.sin(x)
        return self.layer(x)


def test_what_depends_on_no_parameter_runs_ahead() -> None:
    graph = capture(Prepared(), (torch.zeros(4, 4),), supervised(lambda y: y.sum(), targets=0))
    on = cluster("p100:1x2")
    tiles = {
        op.name: whole_tiling(op.space.full.shape, [int(op.label == "sin")]) for op in graph.ops
    }
    step = simulate_steps(graph, Plan(tiles, 2), on).step_seconds
    assert len([op for op in graph.ops if op.label == "sin"]) == 20
    assert 0.5 * step <= lower_bound(graph, on).seconds <= step


def test_plans_without_a_bound() -> None:
    """Steps that overlap can be shorter than the lower bound of a single step, so they have no bound."""
    graph, on = small("mlp-tiny")[1], cluster("p100:1x2")
    for schedule in ("threaded:2", ""):
        evaluated = plan_and_predict(
            graph, on, "model", settings=Settings(sync="allreduce", schedule=schedule)
        )
        assert (evaluated.row["lower_bound_ms"] is None) == bool(schedule)
        assert bool(why_unbounded(evaluated.plan)) == bool(schedule)
    assert why_unbounded(replace(evaluated.plan, split_backward=True))
    assert why_unbounded(evaluated.plan, Profile())


def test_data_parallelism_on_a_compute_bound_network_is_close_to_it() -> None:
    w = zoo.load("vgg16", batch=512)
    graph = capture(w.model, w.batch, w.loss, name=w.name)
    on = cluster("p100:4x4")
    bound = lower_bound(graph, on)
    step = simulate(lower(graph, plan_for(graph, on, "data")), on).total_seconds
    assert 0.97 * step <= bound.seconds == bound.work <= step


def test_one_device_alone_needs_no_message() -> None:
    graph, on = small("lenet-tiny")[1], cluster("p100:1x1")
    step = simulate(lower(graph, plan_for(graph, on, "data")), on).total_seconds
    bound = lower_bound(graph, on)
    assert bound.seconds == pytest.approx(max(bound.work, bound.path, bound.one_device))
    assert 0.5 * step <= bound.seconds <= step
