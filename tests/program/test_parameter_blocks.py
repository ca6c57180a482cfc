"""ZeRO in the program: blocks, gathers that start one block ahead, and what is refused."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import make_plan, mlp, small
from torch import nn

from raddle.clusters import cluster
from raddle.costs.collectives import collective_bytes
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.pipelining import stage_of
from raddle.plans.plan import Plan
from raddle.plans.tiling import Irregular, Tile, Tiling, whole_tiling
from raddle.program.checks.check import check
from raddle.program.collective_kind import Collective
from raddle.program.communicators import communicators, most_on_a_device
from raddle.program.lower import lower
from raddle.program.parameter_blocks import op_blocks
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Gather, Move, Program, Reduce, Run, Update, buffer_bytes
from raddle.program.segments import segments
from raddle.searches.planning import plan_for
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.timeline import simulate

ZERO3 = "sharded:parameters"


@cache
def deep(layers: int = 16) -> Graph:
    """Linear layers of one size, so that two of 16 are a block."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
    return capture(model, (torch.zeros(4, 8),), supervised(lambda y: y.sum(), targets=0))


def data_parallel(graph: Graph, devices: int = 2, sync: str = ZERO3, **more: Any) -> Program:
    plan = plan_for(graph, cluster(f"local:{devices}"), "data", sync=sync)
    return lower(graph, dataclasses.replace(plan, **more))


def picture(program: Program, phase: str) -> str:
    """Draws one phase of the program: g0 where block 0 is gathered, 0 where its operators run."""
    graph, words = program.graph, list[str]()
    cut = op_blocks(graph.ops, graph, program.plan, program.regions)
    block = {op.name: k for k, ops in enumerate(cut) for op in ops}
    first = {n: block[op.name] for op in reversed(graph.ops) for n in op.inputs}
    directions = {"F": "F", "B": "B", "R": "B"}
    direction = "F"
    for i in program.instructions:
        direction = directions.get(getattr(i, "phase", ""), direction)
        if isinstance(i, Run) and direction == phase:
            words.append(f"{block[i.op]}")
        elif isinstance(i, Gather):
            words.append(f"g{first[i.parameters[0]]}")
    distinct = [w for w, before in zip(words, ["", *words], strict=False) if w != before]
    return " ".join(distinct)


def test_a_gather_starts_when_the_block_before_begins() -> None:
    assert picture(data_parallel(deep(4)), "F").startswith("g0 g1 0 g2 1 g3 2 3")
    assert picture(data_parallel(deep(4)), "B").endswith("g3 g2 3 g1 2 g0 1 0")
    program = data_parallel(deep(4), steps=2)
    check(program)
    gathers = [i for i in program.instructions if isinstance(i, Gather) and i.key.step == 1]
    updates = {
        i.parameter: n for n, i in enumerate(program.instructions)
        if isinstance(i, Update) and not i.key.step
    }  # fmt: skip
    assert len(gathers) == 8  # forward and backward
    for gather in gathers:
        assert {updates[name] for name in gather.parameters} == set(gather.deps)


def test_a_block_has_one_reduce_scatter_and_zero_2_one_gather() -> None:
    program = data_parallel(deep(4), sync="sharded", steps=2)
    check(program)
    step = [i for i in program.instructions if i.key.step == 0]
    scatters = [i for i in step if isinstance(i, Reduce)]
    gathers = [i for i in step if isinstance(i, Gather)]
    assert all(i.collective is Collective.REDUCE_SCATTER for i in scatters)
    by_block = [
        {"3.weight", "3.bias"},
        {"2.weight", "2.bias"},
        {"1.weight", "1.bias"},
        {"0.weight", "0.bias"},
    ]
    assert [set(i.parameters) for i in scatters] == by_block
    assert [set(i.parameters) for i in gathers] == by_block[
        ::-1
    ]  # the first used is the first gathered
    last_update = max(step.index(i) for i in step if isinstance(i, Update))
    assert all(step.index(i) > last_update for i in gathers)


@given(rows=st.integers(0, 40), width=st.integers(1, 3), holders=st.integers(1, 9))
def test_shards_cover_a_region_in_order_and_are_padded_equally(
    rows: int, width: int, holders: int
) -> None:
    region = ParameterRegion(Box((5, 0), (5 + rows, width)), tuple(range(10, 10 + holders)))
    shards = [region.shard(d) for d in region.devices]
    present = [shard for shard in shards if shard is not None]
    assert [r for shard in present for r in range(shard.lo[0], shard.hi[0])] == [
        *range(5, 5 + rows)
    ]
    assert shards == [*present, *[None] * (holders - len(present))]  # only the last ones are empty
    assert all(shard.volume == region.elements_per_shard for shard in present[:-1])
    assert all(shard.volume <= region.elements_per_shard for shard in present)
    assert rows * width <= region.padded_elements < (rows + holders) * width


@given(
    rows=st.integers(0, 40),
    width=st.integers(1, 3),
    size=st.integers(2, 4),
    count=st.integers(2, 3),
)
def test_groups_of_holders_have_the_same_shards(
    rows: int, width: int, size: int, count: int
) -> None:
    devices = tuple(range(10, 10 + 2 * size * count, 2))
    region = ParameterRegion(Box((5, 0), (5 + rows, width)), devices, group_size=size)
    alone = region._replace(devices=devices[:size], group_size=0)
    assert sum(region.groups, ()) == devices
    assert [len(group) for group in region.groups] == [size] * count
    assert sorted(sum(region.replicas, ())) == list(devices)
    for group in region.groups:
        assert [region.shard(d) for d in group] == [alone.shard(d) for d in alone.devices]
    for replicas in region.replicas:
        assert len({region.shard(d) for d in replicas}) == 1
    assert region.padded_elements == alone.padded_elements
    assert region.shard_volumes == alone.shard_volumes * count
    assert region.rings(Collective.ALL_GATHER) == region.groups
    assert region.rings(Collective.ALL_REDUCE) == region.replicas


def mixed_holders(sync: str) -> Program:
    """One layer's first rows are on devices 0 to 3, the others on 0 and 1, which are one group of two."""
    graph = deep(2)
    layer = graph.ops[0]
    batch, out, summed = (d.size for d in layer.space.dims)
    tiles: dict[str, Tiling] = {
        op.name: whole_tiling([d.size for d in op.space.dims], (0, 1, 2, 3)) for op in graph.ops
    }
    first, other = Box((0, 0, 0), (batch, 3, summed)), Box((0, 3, 0), (batch, out, summed))
    tiles[layer.name] = Irregular(
        (*(Tile(first, d) for d in range(4)), *(Tile(other, d) for d in range(2)))
    )
    return lower(graph, Plan(tiles, 4, sync=sync, steps=2))


@pytest.mark.parametrize("sync", ["sharded,group=2", "sharded:after,group=2", f"{ZERO3},group=2"])
def test_replicas_are_summed_where_there_are_any(sync: str) -> None:
    program = mixed_holders(sync)
    check(program)
    (large, small) = sorted(program.regions["0.weight"], key=lambda s: -len(s.devices))
    assert (large.devices, large.group_size) == ((0, 1, 2, 3), 2)
    assert (small.devices, small.group_size) == ((0, 1), 0)
    sums = [i for i in program.instructions if isinstance(i, Reduce) and "0.weight" in i.parameters]
    scatters = [i for i in sums if i.collective is Collective.REDUCE_SCATTER]
    replica_sums = [i for i in sums if program.sums_replicas(i)]
    assert len(scatters) == len(replica_sums) == 2  # one in each step
    for i in replica_sums:
        assert set(buffer_bytes(program, i)) == {(0, 2), (1, 3)}
        assert all(large.devices == s.devices for regions in i.regions for s in regions)
    assert set(buffer_bytes(program, scatters[0])) == {(0, 1), (2, 3)}
    for machine in ("local:4", "p100:2x2"):
        plan = dataclasses.replace(program.plan, steps=1)
        evaluator = Evaluator(program.graph, cluster(machine), plan)
        step = simulate(lower(program.graph, plan), cluster(machine))
        assert evaluator.time() == evaluator.time(fold=False) == int(step.end.max())


def test_a_rank_is_in_few_groups() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    graph = capture(model, (torch.zeros(16, 8),), supervised(lambda y: y.sum(), targets=0))
    plan = plan_for(graph, cluster("p100:4x4"), "data", sync=f"{ZERO3},group=4")
    program = lower(graph, plan)
    assert most_on_a_device(communicators(program)) <= 5  # all, its group, its replicas, messages


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
        assert sum(graph.values[n].nbytes for n in read) * 32 >= total


@pytest.mark.parametrize(("bucket", "count"), [(2**40, 8), (0, 16), (288, 16), (300, 8)])
def test_a_block_has_the_bytes_of_a_bucket_within_limits(bucket: int, count: int) -> None:
    graph = deep(16)  # each layer has 288 bytes
    plan = dataclasses.replace(plan_for(graph, cluster("local:2"), "data"), bucket=bucket)
    assert len(op_blocks(graph.ops, graph, plan, {p.name for p in graph.parameters})) == count


def test_recomputed_layers_that_begin_without_parameters_are_gathered_one_by_one() -> None:
    layers = (nn.Sequential(nn.ReLU(), nn.Linear(8, 8)) for _ in range(8))
    graph = capture(
        nn.Sequential(*layers), (torch.zeros(4, 8),), supervised(lambda y: y.sum(), targets=0)
    )
    recompute = tuple(
        (a.name, b.name) for a, b in zip(graph.ops[:16:2], graph.ops[1:16:2], strict=True)
    )
    plan = plan_for(graph, cluster("local:2"), "data")
    plan = dataclasses.replace(plan, recompute=recompute, bucket=0)
    blocks = op_blocks(graph.ops, graph, plan, {p.name for p in graph.parameters})
    assert [tuple(op.name for op in block[:2]) for block in blocks] == list(recompute)


def test_data_parallel_is_several_segments() -> None:
    assert len(segments(data_parallel(deep()), 0)) >= 8


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 1), (4, 1), (3, 2)])
def test_bytes(devices: int, microbatches: int) -> None:
    """Shards are gathered for forward and backward of each micro-batch, gradients scattered once."""
    graph = deep()
    program = data_parallel(graph, devices, microbatches=microbatches)
    padded = sum(r.padded_elements * 4 for regions in program.regions.values() for r in regions)
    collectives = [i for i in program.instructions if isinstance(i, Reduce | Gather)]
    sent = sum(
        collective_bytes(i.collective, devices, nbytes)
        for i in collectives for nbytes in buffer_bytes(program, i).values()
    )  # fmt: skip
    assert sent == (2 * microbatches + 1) * (devices - 1) * padded
    messages = sum(
        m.elements * program.element_bytes(i.value)
        for i in program.instructions if isinstance(i, Move) for m in i.messages
    )  # fmt: skip
    assert simulate(program, cluster(f"local:{devices}")).comm_bytes == sent + messages


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
def test_refuses_a_use_without_a_gather(phase: str) -> None:
    program = data_parallel(deep(4))
    number = first_instruction(program, Run, op=program.graph.ops[2].name, phase=phase)
    run = program.instructions[number]
    left = tuple(d for d in run.deps if not isinstance(program.instructions[d], Gather))
    assert left != run.deps
    with pytest.raises(
        InputError, match=r"reads '2.(weight|bias)', which is sharded, and waits for no"
    ):
        check(with_changed(program, number, deps=left))


@pytest.mark.parametrize("sync", ["sharded", ZERO3])
def test_refuses_a_gather_that_is_too_early_or_incomplete(sync: str) -> None:
    program = data_parallel(deep(4), sync=sync, steps=2)
    check(program)
    number = max(n for n, i in enumerate(program.instructions) if isinstance(i, Gather))
    gather = program.instructions[number]
    assert isinstance(gather, Gather)
    with pytest.raises(InputError, match=r"gather of .*does not wait for .*update of"):
        check(with_changed(program, number, deps=()))
    with pytest.raises(InputError, match="does not gather all regions of"):
        check(with_changed(program, number, regions=((),) * len(gather.parameters)))


def test_refuses_shards_whose_replicas_are_not_summed() -> None:
    program = data_parallel(deep(4), 4, sync="sharded,group=2")
    check(program)
    number = first_instruction(program, Reduce, collective=Collective.ALL_REDUCE)
    replica_sum = program.instructions[number]
    assert isinstance(replica_sum, Reduce)
    name = replica_sum.parameters[0]
    with pytest.raises(InputError, match=r"reduce of .*does not wait for .*reduce of"):
        check(with_changed(program, number, deps=()))
    with pytest.raises(InputError, match=r"the holders of parameter .* disagree"):
        check(with_changed(program, number, regions=((),) * len(replica_sum.parameters)))
    with pytest.raises(InputError, match=r"the holders of parameter .* disagree"):
        check(with_changed(program, number, collective=Collective.REDUCE_SCATTER))
    with pytest.raises(InputError, match="before its gradients are summed over all holders"):
        check(with_changed(program, number, parameters=(), regions=()))
    update = first_instruction(program, Update, parameter=name)
    left = tuple(d for d in program.instructions[update].deps if d != number)
    with pytest.raises(InputError, match="before its gradients are summed over all holders"):
        check(with_changed(program, update, deps=left))


def test_refuses_gradients_that_are_all_reduced_and_a_missing_gather() -> None:
    program = data_parallel(deep(4), sync="sharded")
    number = first_instruction(program, Reduce)
    with pytest.raises(InputError, match=r"the holders of parameter .* disagree"):
        check(with_changed(program, number, collective=Collective.ALL_REDUCE))
    number = first_instruction(program, Gather)
    with pytest.raises(InputError, match="is gathered 0 times after it, not once"):
        check(with_changed(program, number, parameters=(), regions=()))


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
