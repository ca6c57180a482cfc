"""Native calls: a composite whose tile is whole costs what its native call takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import small

from raddle.clusters import Device, cluster
from raddle.costs.compute import ComputeCosts
from raddle.costs.native_calls import applicable_native_calls, find_native_calls
from raddle.costs.profile import NATIVE_CALL, Profile, measure
from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph, Op
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.segments import segments
from raddle.runtime.native_calls import native_calls_in_segment
from raddle.searches.plan_space import PlanSpace
from raddle.searches.planning import plan_for
from raddle.searches.settings import Settings
from raddle.searches.starts import random_start

DEVICE: Device = cluster("p100:1x1").devices[0]


def make_costs(graph: Graph, profile: Profile | None = None, bn: str = "global") -> ComputeCosts:
    return ComputeCosts(graph, active_values(graph), profile, bn=bn)


def measure_boxes(graph: Graph, boxes: list[tuple[Op, Box]]) -> Profile:
    costs = make_costs(graph)
    grad_operands = {op.name: costs.grad_operands[op.name, "B"] for op in graph.ops}
    return measure(graph, boxes, grad_operands, DEVICE.kind, repeats=1)


def half(op: Op, letter: str) -> Box:
    return Box.full([d.size // 2 if d.name == letter else d.size for d in op.space.dims])


@pytest.mark.parametrize(
    ("model", "kind"), [("resnet110-tiny", "batch_norm"), ("gpt-tiny", "layer_norm")]
)
def test_the_native_call_counts_in_place_of_its_operators(model: str, kind: str) -> None:
    graph = small(model)[1]
    native = next(n for n in find_native_calls(graph).values() if n.fused.kind == kind)
    ops = [native.ops[0], native.main]
    profile = measure_boxes(graph, [(op, op.space.full) for op in ops])
    assert sum(NATIVE_CALL in key for key in profile.seconds) == 2  # forward and backward
    costs = make_costs(graph, profile)
    for phase in "FB":
        grad_operands = costs.grad_operands.get((native.main.name, phase))
        call = profile.find_native_call(
            native, native.main.space.full, phase, grad_operands, DEVICE.kind
        )
        assert call is not None
        assert call > 0
        assert [costs.seconds(op, op.space.full, phase, DEVICE) for op in ops] == [0.0, call]


def test_a_backward_in_two_parts_takes_as_long_as_one() -> None:
    graph = small("resnet110-tiny")[1]
    native = next(n for n in find_native_calls(graph).values() if n.fused.kind == "batch_norm")
    convolution = next(
        op
        for op in graph.ops
        if op.kind == "conv2d" and len(make_costs(graph).all_grad_operands[op.name]) == 2
    )
    ops = [convolution, native.ops[0], native.main]
    profile = measure_boxes(graph, [(op, op.space.full) for op in ops])
    one = make_costs(graph, profile)
    two = ComputeCosts(graph, active_values(graph), profile, split_backward=True)
    for op in ops:
        parts = [
            two.seconds(op, op.space.full, p, DEVICE) for p in "BW" if two.grad_operands[op.name, p]
        ]
        whole = profile.find(op, op.space.full, "B", one.all_grad_operands[op.name], DEVICE.kind)
        # Batch norm counts as single operators here: segments are cut between them.
        assert sum(parts) == pytest.approx(whole)


def test_a_part_of_the_samples_is_whole_where_statistics_are_local() -> None:
    graph = small("resnet110-tiny")[1]
    native = next(n for n in find_native_calls(graph).values() if n.fused.kind == "batch_norm")
    moments, main = native.ops[0], native.main
    profile = measure_boxes(graph, [(op, half(op, "n")) for op in (moments, main)])
    apart, local = make_costs(graph, profile), make_costs(graph, profile, bn="local")
    assert apart.seconds(moments, half(moments, "n"), "F", DEVICE) > 0
    assert local.seconds(moments, half(moments, "n"), "F", DEVICE) == 0
    assert local.seconds(main, half(main, "n"), "F", DEVICE) > 0


def test_statistics_of_one_number_are_not_measured() -> None:
    graph = small("resnet110-tiny")[1]
    native = next(n for n in find_native_calls(graph).values() if n.fused.kind == "batch_norm")
    main = native.main
    one = Box.full([d.size if d.name == "c" else 1 for d in main.space.dims])
    assert not any(NATIVE_CALL in key for key in measure_boxes(graph, [(main, one)]).seconds)


def test_channels_may_be_split() -> None:
    graph = small("resnet110-tiny")[1]
    native = next(n for n in find_native_calls(graph).values() if n.fused.kind == "batch_norm")
    moments = native.ops[0]
    assert native.is_whole(moments, half(moments, "c"), "global")
    assert not native.is_whole(moments, half(moments, "h"), "global")


@pytest.mark.parametrize("model", ["resnet110-tiny", "unet-tiny", "gpt-tiny", "inception_v3-tiny"])
def test_tiles_of_one_operator_are_tiles_of_another(model: str) -> None:
    for name, native in find_native_calls(small(model)[1]).items():
        op = next(op for op in native.ops if op.name == name)
        assert native.op_tile(op, native.main_tile(op, op.space.full)) == op.space.full


def test_a_recurrent_layer_counts_as_one_call_and_its_operators_have_parts_of_it() -> None:
    graph = small("rnnlm-tiny")[1]
    native = next(n for n in find_native_calls(graph).values() if n.fused.kind == "lstm")
    for tile in (native.main.space.full, half(native.main, "n")):
        profile = measure_boxes(graph, [(native.main, tile)])
        costs = make_costs(graph, profile)
        for phase in "FB":
            grad_operands = costs.grad_operands.get((native.main.name, phase))
            call = profile.find_native_call(native, tile, phase, grad_operands, DEVICE.kind)
            parts = [
                costs.seconds(op, native.op_tile(op, tile), phase, DEVICE) for op in native.ops
            ]
            assert sum(parts) == pytest.approx(call)
            assert min(parts) > 0


def test_recurrences_of_other_lengths_are_other_calls() -> None:
    def fingerprint(steps: int) -> str:
        x = torch.zeros(2, steps, 4)
        lstm = torch.nn.LSTM(4, 4, batch_first=True)
        graph = capture(lstm, (x,), supervised(lambda out: out[0].sum(), targets=0))
        return next(iter(find_native_calls(graph).values())).fingerprint

    assert fingerprint(3) == fingerprint(3) != fingerprint(4)


def make_plan(graph: Graph, method: str, bn: str) -> Plan:
    """A plan by a method; "random": groups of operators get random splits, as in FlexFlow's search."""
    on = cluster("local:4")
    if method == "split backward":
        return replace(plan_for(graph, on, method="data"), bn=bn, split_backward=True)
    if method != "random":
        return replace(plan_for(graph, on, method=method), bn=bn)
    return Plan(random_start(PlanSpace(graph, on, Settings()), seed=1), 4, bn=bn)


@pytest.mark.parametrize("bn", ["global", "local"])
@pytest.mark.parametrize(
    "method", ["data", "model", "layerwise", "spatial", "owt", "optcnn", "random", "split backward"]
)
@pytest.mark.parametrize("model", ["resnet110-tiny", "gpt-tiny", "unet-tiny", "rnnlm-tiny"])
def test_what_is_counted_as_one_call_runs_as_one(model: str, method: str, bn: str) -> None:
    graph = small(model)[1]
    plan = make_plan(graph, method, bn)
    program = lower(graph, plan)
    variant = program.variants[0]
    native_calls = find_native_calls(graph)
    applicable = ComputeCosts(
        graph, active_values(graph), Profile(), split_backward=plan.split_backward, bn=bn,
        native_calls=applicable_native_calls(graph, plan.tiles),
    ).native_calls  # fmt: skip
    for device in range(4):
        ops = [op for op in graph.ops if device in variant.tiles[op.name].devices]
        device_segments = segments(program, device)
        calls_by_segment = [
            native_calls_in_segment(variant, device, segment) for segment in device_segments
        ]
        together = {name for calls in calls_by_segment for name in calls.replaced}
        for op in ops:
            if op.name in native_calls:
                boxes = [t.box for t in variant.tiles[op.name].tiles if t.device == device]
                whole = all(native_calls[op.name].is_whole(op, box, bn) for box in boxes)
                counted = op.name in applicable and whole
                assert counted == (op.name in together), (device, op.name, boxes)
