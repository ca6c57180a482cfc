"""ZeRO-3 in the program: blocks, pulls that start one block ahead, and what is refused."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch
from small_models import make_plan, mlp, small
from torch import nn

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.pipelining import stage_of
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Move, Program, Run, Update
from raddle.program.segments import segments
from raddle.program.zero3_blocks import op_blocks
from raddle.searches.planning import plan_for
from raddle.simulation.timeline import simulate

ZERO3 = "sharded:parameters"


@cache
def deep(layers: int = 16) -> Graph:
    """Linear layers of one size, so that two of 16 are a block."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
    return capture(model, [torch.zeros(4, 8)], loss=lambda y: y.sum())


def data_parallel(graph: Graph, devices: int = 2, **more: Any) -> Program:
    plan = plan_for(graph, cluster(f"local:{devices}"), "data", sync=ZERO3)
    return lower(graph, dataclasses.replace(plan, **more))


def picture(program: Program, phase: str) -> str:
    """Draws one phase of the program: p0 where block 0 is pulled, 0 where its operators run."""
    graph, words = program.graph, list[str]()
    cut = op_blocks(graph.ops, graph, program.plan, program.slices)
    block = {op.name: k for k, ops in enumerate(cut) for op in ops}
    first = {n: block[op.name] for op in reversed(graph.ops) for n in op.inputs}
    directions = {"F": "F", "B": "B", "R": "B"}
    direction = "F"
    for i in program.instructions:
        direction = directions.get(getattr(i, "phase", ""), direction)
        if isinstance(i, Run) and direction == phase:
            words.append(f"{block[i.op]}")
        elif isinstance(i, Move) and i.kind == "pull":
            words.append(f"p{first[i.value]}")
    distinct = [w for w, before in zip(words, ["", *words], strict=False) if w != before]
    return " ".join(distinct)


def test_pulls_leave_when_the_block_before_begins() -> None:
    assert picture(data_parallel(deep(4)), "F").startswith("p0 p1 0 p2 1 p3 2 3")
    assert picture(data_parallel(deep(4)), "B").endswith("p3 p2 3 p1 2 p0 1 0")
    program = data_parallel(deep(4), steps=2)
    check(program)
    at = {
        (i.op, i.phase, i.key.step): n
        for n, i in enumerate(program.instructions)
        if isinstance(i, Run)
    }
    pulls = [i for i in program.instructions if isinstance(i, Move) and i.value == "2.weight"]
    forward, _ = (i for i in pulls if i.kind == "pull" and i.key.step == 0)
    other = [i for i in program.instructions if isinstance(i, Move) and i.value == "1.weight"]
    _, backward = (i for i in other if i.kind == "pull" and i.key.step == 0)
    ops = [op.name for op in program.graph.ops]  # the four layers, then the sum
    assert forward.deps == (at[ops[0], "F", 0],)  # when layer 1 begins
    assert backward.deps == (at[ops[3], "B", 0],)  # when layer 2 begins backward
    again = [i for i in pulls if i.kind == "pull" and i.key.step == 1]
    updates = {
        n for n, i in enumerate(program.instructions)
        if isinstance(i, Update) and i.parameter == "2.weight" and not i.key.step
    }  # fmt: skip
    assert len(updates) == 2
    assert all(updates <= set(pull.deps) for pull in again)


@pytest.mark.parametrize("name", ["resnet110-tiny", "gpt-tiny", "rnnlm-tiny"])
def test_blocks_are_deterministic_and_leave_composites_whole(name: str) -> None:
    graph = small(name)[1]
    plan = plan_for(graph, cluster("local:2"), "data")
    names = {p.name for p in graph.parameters}
    recomputed = tuple(op.name for op in graph.ops[3:9])
    plan = dataclasses.replace(plan, recompute=(recomputed,))
    blocks = op_blocks(graph.ops, graph, plan, names)
    assert [op for block in blocks for op in block] == list(graph.ops)
    assert 2 <= len(blocks) <= 8
    for piece in (recomputed, *(fused.ops for fused in graph.fused_calls)):
        assert sum(any(op.name in piece for op in block) for block in blocks) == 1
    for block in blocks[:-1]:
        read = {n for op in block for n in op.inputs if n in names}
        total = sum(p.nbytes for p in graph.parameters)
        assert sum(graph.values[n].nbytes for n in read) * 8 >= total


def test_data_parallel_is_several_segments() -> None:
    assert len(segments(data_parallel(deep()), 0)) >= 8


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 1), (4, 1), (3, 2)])
def test_bytes(devices: int, microbatches: int) -> None:
    """Each device sends its shard to all others for forward and backward, and gradients to all shards."""
    graph = deep()
    program = data_parallel(graph, devices, microbatches=microbatches)
    total = sum(p.nbytes for p in graph.parameters)
    moved = sum(
        m.elements * program.element_bytes(i.value)
        for i in program.instructions if isinstance(i, Move) and i.kind in ("push", "pull")
        for m in i.messages
    )  # fmt: skip
    assert moved == (2 * microbatches + 1) * (devices - 1) * total
    simulated = simulate(program, cluster(f"local:{devices}")).comm_bytes
    everything = sum(
        m.elements * program.element_bytes(i.value)
        for i in program.instructions if isinstance(i, Move) for m in i.messages
    )  # fmt: skip
    assert simulated == everything


# -- refused --------------------------------------------------------------------------------------


def with_changed(program: Program, number: int, **more: Any) -> Program:
    instructions = list(program.instructions)
    instructions[number] = dataclasses.replace(instructions[number], **more)
    return dataclasses.replace(program, instructions=tuple(instructions))


def first_instruction(program: Program, kind: type, **wanted: Any) -> int:
    return next(
        n for n, i in enumerate(program.instructions)
        if isinstance(i, kind) and all(getattr(i, k) == v for k, v in wanted.items())
    )  # fmt: skip


@pytest.mark.parametrize("phase", ["F", "B"])
def test_refuses_a_use_without_its_rows(phase: str) -> None:
    program = data_parallel(deep(4))
    number = first_instruction(program, Run, op=program.graph.ops[2].name, phase=phase)
    run = program.instructions[number]
    pulls = [d for d in run.deps if getattr(program.instructions[d], "value", "") == "2.weight"]
    assert pulls
    left = tuple(d for d in run.deps if d not in pulls)
    with pytest.raises(
        InputError, match=r"has no .* of '2.weight', which is sharded: it waits for"
    ):
        check(with_changed(program, number, deps=left))


def test_refuses_rows_that_are_not_updated_or_not_from_their_server() -> None:
    program = data_parallel(deep(4), steps=2)
    check(program)
    number = max(
        n for n, i in enumerate(program.instructions)
        if isinstance(i, Move) and (i.kind, i.value, i.key.step) == ("pull", "3.bias", 1)
    )  # fmt: skip
    pull = program.instructions[number]
    assert isinstance(pull, Move)
    runs = tuple(d for d in pull.deps if isinstance(program.instructions[d], Run))
    with pytest.raises(
        InputError, match=r"pull of '3.bias'.*does not wait for .*update of '3.bias'"
    ):
        check(with_changed(program, number, deps=runs))
    swapped = tuple(m._replace(source=m.target, target=m.source) for m in pull.messages)
    with pytest.raises(InputError, match="is not the server of"):
        check(with_changed(program, number, messages=swapped))


def test_refuses_what_drops_too_early() -> None:
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1"}
    with pytest.raises(InputError, match="computes their gradients later: use sharded"):
        lower(mlp(), make_plan(mlp(), tiles, 2, sync=ZERO3, split_backward=True))
    plan = make_plan(mlp(), {"fc2": "@1", "sum": "@1"}, 2, sync=ZERO3, recompute=(("relu", "fc2"),))
    staged = dataclasses.replace(plan, stages=(("fc1", "relu"), ("fc2", "sum")), schedule="gpipe")
    assert len(set(stage_of(staged).values())) == 2
    with pytest.raises(InputError, match="is in several stages: use sharded"):
        lower(mlp(), staged)
    asynchronous = dataclasses.replace(staged, schedule="pipedream", recompute=())
    with pytest.raises(InputError, match="use sync allreduce, not 'sharded:parameters'"):
        lower(mlp(), asynchronous)
