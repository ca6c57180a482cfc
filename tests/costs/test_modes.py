"""Eager and compiled devices: launches, layout copies, tensor cores, fused operators."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small
from torch import nn

import raddle
from raddle.clusters import Cluster, cluster
from raddle.clusters.devices import Device
from raddle.costs.compute import ComputeCosts, speed
from raddle.graph.capture import capture
from raddle.graph.gradients import active_values, has_backward
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.precision import Precision
from raddle.plans.value_dtypes import in_precision
from raddle.program.lower import lower
from raddle.searches.planning import plan_for
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.timeline import simulate

MODELS = ("gpt-tiny", "resnet50-tiny", "unet-tiny")


def with_devices(on: Cluster, **changes: object) -> Cluster:
    return replace(on, devices=tuple(replace(d, **changes) for d in on.devices))  # type: ignore[arg-type]


def seconds(graph: Graph, device: Device) -> float:
    active = active_values(graph)
    costs = ComputeCosts(graph, active)
    return sum(
        costs.seconds(op, op.space.full, phase, device)
        for op in graph.ops
        for phase in ("FB" if has_backward(op, active) else "F")
    )


@settings(max_examples=12)
@given(
    name=st.sampled_from(MODELS), compiled=st.booleans(), precision=st.sampled_from(["float32", "bf16"]),
    machine=st.sampled_from(["h200:1x2", "h100:1x2"]), method=st.sampled_from(["data", "spatial"]),
)  # fmt: skip
def test_all_simulations_agree(
    name: str, compiled: bool, precision: str, machine: str, method: str
) -> None:
    on = with_devices(cluster(machine), compile=compiled)
    graph = small(name)[1]
    plan = plan_for(graph, on, method, precision=precision, sync="allreduce")
    step = simulate(lower(graph, plan), on)
    assert Evaluator(in_precision(graph, plan.parsed_precision), on, plan).time() == int(
        step.end.max()
    )


@pytest.mark.parametrize("name", MODELS)
def test_compiled_steps_are_faster_than_eager_ones(name: str) -> None:
    device = cluster("h200:1x1").devices[0]
    graph = small(name)[1]
    assert seconds(graph, replace(device, compile=True)) < seconds(graph, device)


def test_a_plan_says_for_which_mode_it_was_predicted() -> None:
    eager, fused = (
        raddle.plan("gpt-tiny", 6, cluster="h200:1x2", method="data", compile=compile)
        for compile in (False, True)
    )
    assert fused.step_ms < eager.step_ms
    assert fused.plan.cluster is not None
    again = Cluster.from_dict(fused.plan.cluster)
    assert all(device.compile for device in again.devices)
    assert not any(device.compile for device in eager.cluster.devices)


@pytest.mark.parametrize("name", MODELS)
def test_an_eager_operator_takes_at_least_a_launch(name: str) -> None:
    graph = small(name)[1]
    device = replace(cluster("h200:1x1").devices[0], launch=1.0)
    for compiled in (False, True):
        costs = ComputeCosts(graph, active_values(graph))
        for op in graph.ops:
            taken = costs.seconds(op, op.space.full, "F", replace(device, compile=compiled))
            assert (taken == 1.0) == (not compiled and not op.traits.is_view)


@cache
def product(features: int) -> Graph:
    return capture(
        nn.Linear(64, features, bias=False), (torch.zeros(8, 64),),
        supervised(lambda y: y.sum(), targets=0),
    )  # fmt: skip


@pytest.mark.parametrize("features", [64, 57])
def test_tensor_cores_need_rows_of_16_bytes_in_eager_mode(features: int) -> None:
    device = cluster("h200:1x1").devices[0]
    graph = in_precision(product(features), Precision("bf16"))
    (op,) = (op for op in graph.ops if op.kind == "linear")
    eager, padded = speed(graph, op, device), speed(graph, op, replace(device, compile=True))
    assert padded.flop_rate == device.efficiency["matmul"] * device.flops["bfloat16"]
    assert (eager.flop_rate == padded.flop_rate) == (features == 64)
    without = replace(device, flops={"float32": 1e12})
    assert speed(graph, op, without).flop_rate == device.efficiency["matmul"] * 1e12


def test_eager_convolutions_copy_the_layout() -> None:
    device = replace(cluster("h200:1x1").devices[0], launch=0.0)
    graph = small("unet-tiny")[1]
    plain = replace(device, workspace={"conv": 0.0})
    assert seconds(graph, device) > seconds(graph, plain)
    compiled = (replace(d, compile=True) for d in (device, plain))
    assert len({seconds(graph, d) for d in compiled}) == 1
