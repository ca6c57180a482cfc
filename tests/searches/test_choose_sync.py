"""P3 is chosen if the simulation says that it is faster by the margin, and otherwise not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from raddle import zoo
from raddle.clusters import Cluster, Device, Link, cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.searches.choose_sync import (
    MARGIN,
    MESSAGE_SECONDS,
    SLICE_ALL_REDUCE_SECONDS,
    SMALLER_BUCKETS,
    host_seconds,
    with_fastest_sync,
)
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps
from raddle.searches.slice_order import with_slice_order


@cache
def vgg() -> Graph:
    """VGG-19: three quarters of its parameters are in one layer, whose gradient is ready first."""
    work = zoo.load("vgg19", batch=32, device="meta")
    return capture(work.model, work.batch, work.loss)


def hosts(bandwidth: str) -> Cluster:
    kind = {"flops": {"float32": "4 TFLOP/s"}, "bandwidth": "100 GB/s", "memory": "64 GB"}
    return Cluster.from_dict(
        {
            "name": "hosts",
            "devices": {"node": kind},
            "nodes": [{"count": 2, "devices": ["node"]}],
            "network": {"bandwidth": bandwidth, "latency": "50 us"},
        }
    )


@pytest.mark.parametrize(
    ("bandwidth", "sync"), [("0.4 GB/s", "p3"), ("0.7 GB/s", "p3"), ("100 GB/s", "allreduce")]
)
def test_it_pays_where_communication_takes_as_long_as_compute(bandwidth: str, sync: str) -> None:
    on = hosts(bandwidth)
    plan = plan_for(vgg(), on, "data", bn="local")
    assert plan.sync == "allreduce"  # a named method does not choose the sync kind
    seconds: dict[tuple[str, int], float] = {}

    def step(candidate: Plan) -> float:
        timeline = simulate_steps(vgg(), candidate, on)
        step_seconds = timeline.step_seconds + host_seconds(timeline)
        seconds[candidate.sync, candidate.bucket] = step_seconds
        return step_seconds

    chosen = with_fastest_sync(plan, on, step)
    assert chosen.sync == sync
    sums = [s for (how, _), s in seconds.items() if how == "allreduce"]
    assert len(sums) == 1 + len(SMALLER_BUCKETS)
    assert (seconds["p3", plan.bucket] < (1 - MARGIN) * min(sums)) == (sync == "p3")
    assert seconds[chosen.sync, chosen.bucket] <= min(seconds.values()) / (1 - MARGIN)


def test_many_small_messages_cost_their_host() -> None:
    plan = plan_for(vgg(), hosts("1 GB/s"), "data", bn="local", sync="p3:unbundled")
    timeline = simulate_steps(vgg(), plan, hosts("1 GB/s"))
    slices = [
        s for slices_of_parameter in timeline.program.slices.values() for s in slices_of_parameter
    ]
    small = sum(s.box.volume < 125_000 for s in slices)
    assert 20 < small < len(slices)
    assert host_seconds(timeline) == pytest.approx(small * 2 * 2 / 2 * MESSAGE_SECONDS)
    bundled = simulate_steps(vgg(), replace(plan, sync="p3"), hosts("1 GB/s"))
    assert host_seconds(bundled) < host_seconds(timeline) / 10  # small slices travel together


def pair(bandwidth: float) -> Cluster:
    """Two devices of one node."""
    device = Device("gpu", 0, {"float32": 4e12}, 64 * 10**9, 1e11)
    return Cluster("pair", (device, device), (Link(bandwidth, 50e-6),), (None,))


@pytest.mark.parametrize(("bandwidth", "sync"), [(0.4e9, "p3:collective"), (1e11, "allreduce")])
def test_inside_of_a_node_slices_are_summed_where_it_pays(bandwidth: float, sync: str) -> None:
    on = pair(bandwidth)
    seconds: dict[str, float] = {}

    def step(candidate: Plan) -> float:
        timeline = simulate_steps(vgg(), candidate, on)
        step_seconds = timeline.step_seconds + host_seconds(timeline)
        seconds[candidate.sync] = step_seconds
        return step_seconds

    plan = plan_for(vgg(), on, "data", bn="local")
    chosen = with_fastest_sync(plan, on, step, lambda p: with_slice_order(vgg(), p, on))
    assert chosen.sync == sync
    assert bool(chosen.order) == (sync != "allreduce")
    assert set(seconds) == {"allreduce", "p3:collective"}  # these two were simulated
    faster = seconds["p3:collective"] < (1 - MARGIN) * seconds["allreduce"]
    assert faster == (sync != "allreduce")


def test_sums_of_slices_cost_their_host() -> None:
    on = hosts("1 GB/s")
    timeline = simulate_steps(
        vgg(), plan_for(vgg(), on, "data", bn="local", sync="p3:collective"), on
    )
    count = len(timeline.program.plan.order)
    assert host_seconds(timeline) == pytest.approx(count * SLICE_ALL_REDUCE_SECONDS)


@pytest.mark.parametrize("machine", ["local:2", "p100:1x4", "p100:4x4"])
def test_devices_of_a_node_have_better_ways(machine: str) -> None:
    on = cluster(machine)
    plan = plan_for(vgg(), on, "data", bn="local")
    assert with_fastest_sync(plan, on, lambda p: {"p3": 0.1}.get(p.sync, 1.0)) == plan


@pytest.mark.parametrize(
    ("machine", "sync"),
    [
        ("p100:4x4", "sharded,group=4"),
        ("h100:2x8", "sharded,group=8"),
        ("p100:1x4", ""),
        ("local:2", ""),
    ],
)
def test_the_devices_of_a_node_are_a_group(machine: str, sync: str) -> None:
    """HSDP is tried where several nodes have several devices, and chosen if it is faster."""
    on = cluster(machine)
    plan, tried = plan_for(vgg(), on, "data", bn="local"), list[str]()

    def step(candidate: Plan) -> float:
        tried.append(candidate.sync)
        return 0.1 if candidate.parsed_sync.group_size else 1.0

    assert with_fastest_sync(plan, on, step).sync == (sync or "allreduce")
    assert tried == ["allreduce", "p3:collective", *([sync] if sync else [])]

    def refuse(candidate: Plan) -> float:
        if candidate.parsed_sync.group_size:
            raise InputError("its tiles do not allow groups.")
        return 1.0

    assert with_fastest_sync(plan, on, refuse) == plan


@pytest.mark.usefixtures("thread_clock")
def test_auto_chooses_for_itself_and_does_as_it_is_told() -> None:
    torch.manual_seed(0)
    on = hosts("0.4 GB/s")
    pins = ["*=n/2"]  # only the sync kind is left to choose
    assert plan_for(vgg(), on, "auto", budget=10, pins=pins).sync == "p3"
    assert plan_for(vgg(), on, "auto", budget=10, pins=pins, sync="allreduce").sync == "allreduce"
