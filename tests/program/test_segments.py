"""Segments: no communication inside, no unnecessary border, and every operator in one of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import SYNCS, random_plan
from small_models import MODELS, make_plan, mlp, small

from raddle.clusters import cluster
from raddle.program.lower import lower
from raddle.program.program import Key, Merge, Move, Program, Reduce, Run
from raddle.program.segments import segments
from raddle.searches.planning import plan_for


def names(program: Program, device: int) -> list[str]:
    return [" ".join(op.name for op in ops) for ops in segments(program, device)]


def test_data_parallel_is_one_segment() -> None:
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1", "sum": "n/2 @0,1"}
    program = lower(mlp(), make_plan(mlp(), tiles, 2, bucket=10**6))
    assert names(program, 0) == names(program, 1) == ["fc1 relu fc2 sum"]


def test_a_bucket_ends_a_segment() -> None:
    """So the bucket is summed while the rest of the backward is computed."""
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1", "sum": "n/2 @0,1"}
    program = lower(mlp(), make_plan(mlp(), tiles, 2, bucket=16))
    assert names(program, 0) == ["fc1 relu", "fc2 sum"]


def test_layers_apart_are_a_segment_a_device() -> None:
    program = lower(mlp(), make_plan(mlp(), {"fc2": "@1", "sum": "@1"}, 2))
    assert (names(program, 0), names(program, 1)) == (["fc1 relu"], ["fc2 sum"])


def test_the_plan_cuts() -> None:
    program = lower(mlp(), make_plan(mlp(), {}, 1, recompute=(("fc1", "relu"),)))
    assert names(program, 0) == ["fc1 relu", "fc2 sum"]
    program = lower(mlp(), make_plan(mlp(), {}, 1, split_backward=True))
    assert names(program, 0) == ["fc1", "relu", "fc2", "sum"]


@pytest.mark.parametrize("sync", [*SYNCS, "ps", "p3", "ps:async"])
@pytest.mark.parametrize("model", ["resnet110-tiny", "gpt-tiny", "rnnlm-tiny"])
def test_gradients_that_are_handed_in_do_not_cut_composites(model: str, sync: str) -> None:
    graph = small(model)[1]
    plan = plan_for(graph, cluster("local:2"), method="data")
    program = lower(graph, replace(plan, sync=sync, bucket=0, bn="local"))
    composites = [
        f.ops for f in graph.fused_calls if "cross_entropy" not in f.kind
    ]  # its mean is summed
    of = {name: n for n, ops in enumerate(composites) for name in ops}
    for one, other in pairwise(segments(program, 0)):
        assert of.get(one[-1].name, -1) != of.get(other[0].name, -2)


@settings(max_examples=40)
@given(model=st.sampled_from(MODELS), devices=st.integers(1, 4), seed=st.integers(0, 10_000))
def test_random_plans(model: str, devices: int, seed: int) -> None:
    graph = small(model)[1]
    program = lower(graph, random_plan(graph, devices, seed, recompute=(), split_backward=False))
    for device in range(devices):
        cut = segments(program, device)
        device_ops = [op for op in graph.ops if device in program.plan.tiles[op.name].devices]
        assert [op for ops in cut for op in ops] == device_ops
        number = {op.name: n for n, ops in enumerate(cut) for op in ops}
        borders = communicates_between(program, device)
        for before, after in pairwise(device_ops):
            together = number[before.name] == number[after.name]
            assert together == ((before.name, after.name) not in borders)


def communicates_between(program: Program, device: int) -> set[tuple[str, str]]:
    """Pairs of consecutive operators of a device with communication between them, in either direction.

    Gradients are sent or summed only after the end of a composite.
    """
    device_ops = [
        op.name for op in program.graph.ops if device in program.plan.tiles[op.name].devices
    ]
    composite = {name: n for n, f in enumerate(program.graph.fused_calls) for name in f.ops}
    key = Key(0, program.plan.microbatches - 1)
    borders = set()
    for phase in "FB":
        last, communicated, handed, arrived = None, False, False, set()
        for number, i in enumerate(program.instructions):
            if i.key != key or device not in i.devices:
                continue
            if isinstance(i, Run) and i.phase == phase:
                ended = last is None or composite.get(last, -1) != composite.get(i.op, -2)
                if last is not None and (
                    communicated or (handed and ended) or arrived & set(i.deps)
                ):
                    later = i.op if phase == "F" else last
                    borders.add((device_ops[device_ops.index(later) - 1], later))
                arrived -= set(i.deps)
                last, communicated, handed = i.op, False, handed and not ended
            elif isinstance(i, Move):
                arrived.add(number)
                communicated |= any(m.source == device for m in i.messages)
            elif isinstance(i, Merge):
                communicated = True
            elif isinstance(i, Reduce):
                handed = True
    return borders
