"""Gradients are sent after the whole backward where the sync kind has the option `after`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_plans import cluster_named, random_plan
from small_models import small

from raddle.errors import InputError
from raddle.plans.plan import Plan
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Merge, Move, Program, Reduce, Run
from raddle.searches.planning import plan_for
from raddle.simulation.timeline import simulate

SYNCS = ("allreduce:after", "server:after", "ps:after", "ps:slice=50,after", "sharded:after")


def senders(i: object) -> set[int]:
    if isinstance(i, Reduce):
        return set(i.devices)
    return {m.source for m in i.messages} if isinstance(i, Move) and i.kind.is_push else set()


@given(
    seed=st.integers(0, 2**30), sync=st.sampled_from(SYNCS), microbatches=st.integers(1, 3),
    machine=st.sampled_from(["p100:2x2", "local:4", "host_overhead:4"]),
)  # fmt: skip
def test_no_gradient_leaves_a_device_before_its_backward_ends(
    seed: int, sync: str, microbatches: int, machine: str
) -> None:
    """Brute force over the tasks of the simulation."""
    graph = small("lenet-tiny")[1]
    plan = random_plan(graph, 4, seed, sync=sync, microbatches=microbatches)
    program = lower(graph, plan)
    check(program)
    timeline = simulate(program, cluster_named(machine))
    computing = [isinstance(i, Run | Merge) for i in program.instructions]
    tasks = timeline.tasks
    backward_ends = {
        d: max(
            (int(end) for end, n, at in zip(timeline.end, tasks.instruction, tasks.device, strict=True)
             if computing[n] and at == d), default=0,
        )
        for d in range(4)
    }  # fmt: skip
    for n, source, device, begin in zip(
        tasks.instruction, tasks.source, tasks.device, timeline.start, strict=True
    ):
        instruction = program.instructions[n]
        # A task of a move from a device to itself is the device time to send or to receive a message.
        sends = isinstance(instruction, Reduce) or source != device
        if sends and int(source) in senders(instruction):
            assert begin >= backward_ends[int(source)]


def data_parallel(sync: str) -> Program:
    graph = small("lenet-tiny")[1]
    tiles = plan_for(graph, cluster_named("local:4"), "data").tiles
    return lower(graph, Plan(tiles, 4, sync=sync, bucket=1000))


@pytest.mark.parametrize("sync", SYNCS)
def test_refuses_a_gradient_that_is_sent_during_the_backward(sync: str) -> None:
    at_once = data_parallel(sync.replace(",after", "").replace(":after", ""))
    check(at_once)
    wrong = replace(at_once, plan=replace(at_once.plan, sync=sync))
    with pytest.raises(InputError, match=f"the whole backward of device ., as sync '{sync}' asks"):
        check(wrong)


def test_waiting_for_the_backward_takes_longer() -> None:
    on = cluster_named("local:4")
    seconds = [
        simulate(data_parallel(sync), on).step_seconds for sync in ("allreduce", "allreduce:after")
    ]
    assert seconds[0] < seconds[1]
