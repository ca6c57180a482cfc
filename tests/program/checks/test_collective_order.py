"""Devices that enter collectives in different orders are refused; lowered programs are not."""

from __future__ import annotations

import graphlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_plans import pipeline, tiny
from random_plans import SYNCS, random_plan, random_sync
from small_models import MODELS, make_plan, mlp, small

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.plans.schedules import ASYNCHRONOUS, MAKERS
from raddle.plans.tiling import Irregular, Tile
from raddle.program.checks.check import check
from raddle.program.checks.collective_order import (
    Entry,
    check_collective_order,
    check_orders,
    entries,
    find_deadlock,
    orders,
)
from raddle.program.communicators import Communicator, direction_of, groups_of
from raddle.program.lower import lower
from raddle.program.program import Gather, Move, Program, Reduce
from raddle.runtime.actions import (
    Receive,
    Send,
    StartAllReduce,
    StartGather,
    StartReduceScatter,
    StartReplicaSum,
    StartSliceAllReduce,
)
from raddle.runtime.build_actions import build_actions

NAMED = [name for name in MAKERS if name not in ASYNCHRONOUS]


def is_cyclic(by_device: Mapping[int, Sequence[Entry]]) -> bool:
    """Whether no common order has all entries in the orders of all devices."""
    graph = graphlib.TopologicalSorter[Entry]()
    for order in by_device.values():
        for earlier, later in pairwise(order):
            graph.add(later, earlier)
    try:
        graph.prepare()
    except graphlib.CycleError:
        return True
    return False


@given(st.data())
def test_random_orders_are_a_deadlock_if_they_have_no_common_order(data: Any) -> None:
    count = data.draw(st.integers(2, 5))
    groups = data.draw(
        st.lists(st.sets(st.integers(0, count - 1), min_size=2, max_size=3), max_size=6)
    )
    drawn = [
        Entry(n, 0, tuple(sorted(g)), Communicator(tuple(sorted(g)))) for n, g in enumerate(groups)
    ]
    by_device = {
        d: data.draw(st.permutations([e for e in drawn if d in e.devices])) for d in range(count)
    }
    waiting = find_deadlock(by_device)
    assert bool(waiting) == is_cyclic(by_device)
    for d, entry in waiting.items():  # each waits for one that is in another entry
        assert d in entry.devices
        assert any(e in waiting and waiting[e] != entry for e in entry.devices)


def some_program(seed: int) -> Program:
    """A lowered program: a random plan, or a pipeline."""
    rng = random.Random(seed)
    if rng.random() < 0.4:
        schedule, microbatches = rng.choice(NAMED), rng.choice([2, 4])
        piped, workers = tiny("mlp-tiny", 2), rng.choice([2, 4])
        return lower(piped.graph, pipeline(piped, workers, microbatches, schedule))
    graph = small(rng.choice(MODELS[:3]))[1]
    devices = rng.randint(2, 5)
    sync = rng.choice([*SYNCS, random_sync(devices, rng)])
    return lower(graph, random_plan(graph, devices, seed, sync=sync, steps=2))


def swaps(program: Program) -> list[tuple[int, int]]:
    """(device, place): another device enters both that entry and the next one of the device."""
    return [
        (d, place)
        for d, order in orders(program).items()
        for place, (a, b) in enumerate(pairwise(order))
        if len(set(a.devices) & set(b.devices)) > 1
    ]


@settings(max_examples=60)
@given(st.integers(0, 2**40), st.randoms(use_true_random=False))
def test_lowered_orders_pass_and_permuted_ones_are_refused(seed: int, rng: random.Random) -> None:
    try:
        program = some_program(seed)
    except InputError:  # a random plan that cannot be lowered
        return
    check_collective_order(program)
    possible = swaps(program)
    if possible:
        d, place = rng.choice(possible)
        swapped = orders(program)
        order = swapped[d]
        order[place], order[place + 1] = order[place + 1], order[place]
        with pytest.raises(InputError, match=rf"wait for each other for ever, .*device {d} in "):
            check_orders(program, swapped)
    permuted = {d: rng.sample(order, len(order)) for d, order in orders(program).items()}
    if is_cyclic(permuted):
        with pytest.raises(InputError, match="wait for each other for ever"):
            check_orders(program, permuted)
    else:
        check_orders(program, permuted)


# -- the run enters them in this order -----------------------------------------------------------------


def of_actions(program: Program, d: int) -> list[tuple[object, ...]]:
    """What the actions of a device enter, in order: (number of the transfer, group or direction)."""
    rank, entered = build_actions(program, d, torch.device("cpu")), []
    batch: set[int] = set()
    first_tag = -1
    for action in rank.actions:
        if isinstance(action, Send | Receive):
            up = action.peer > d if isinstance(action, Send) else action.peer < d
            batch.add(1 if up else -1)
            first_tag = action.tag if first_tag < 0 else first_tag
            if action.ends_batch:
                entered += [("messages", direction) for direction in (1, -1) if direction in batch]
                batch, first_tag = set(), -1
        elif isinstance(action, StartAllReduce):
            entered.append(("collective", rank.buckets[action.bucket].devices))
        elif isinstance(action, StartReplicaSum):
            entered.append(("collective", rank.blocks[action.block].replicas))
        elif isinstance(action, StartReduceScatter | StartGather):
            entered.append(("collective", rank.blocks[action.block].devices))
        elif isinstance(action, StartSliceAllReduce):
            entered.append(("collective", program.bundles[action.number].devices))
    return [entry for entry in entered if entry[0] == "messages" or len(entry[1]) > 1]  # type: ignore[arg-type]


def expected_of(program: Program, d: int) -> list[tuple[object, ...]]:
    """What a device enters in the first step, of which the actions are."""
    return [
        ("messages", e.communicator.direction)
        if e.communicator.direction
        else ("collective", e.devices)
        for e in entries(program)
        if d in e.devices and program.instructions[e.instruction].key.step == 0
    ]


@settings(max_examples=30)
@given(st.integers(0, 2**40))
def test_actions_have_the_checked_order(seed: int) -> None:
    try:
        program = some_program(seed)
    except InputError:
        return
    program = replace(program, plan=replace(program.plan, steps=1))
    first_step = [e for e in entries(program) if program.instructions[e.instruction].key.step == 0]
    for d in range(program.plan.devices):
        assert of_actions(program, d) == [
            ("messages", e.communicator.direction)
            if e.communicator.direction
            else ("collective", e.devices)
            for e in first_step
            if d in e.devices
        ]


def test_groups_with_some_of_the_same_replicas_are_blocks_of_their_own_on_all_devices() -> None:
    """Rows 0-3 are held by 0 1 | 2 3, rows 4-7 by 0 1 | 2 4: those of device 0 have the same replica, 2."""
    op = mlp().op("fc1")
    c = [dim.name for dim in op.space.dims].index("c")

    def rows(low: int, high: int) -> Box:
        full = op.space.full
        return Box((*full.lo[:c], low, *full.lo[c + 1 :]), (*full.hi[:c], high, *full.hi[c + 1 :]))

    tiles = [Tile(rows(0, 4), d) for d in (0, 1, 2, 3)] + [
        Tile(rows(4, 8), d) for d in (0, 1, 2, 4)
    ]
    plan = make_plan(mlp(), {}, 5, sync="sharded,group=2")
    program = lower(mlp(), replace(plan, tiles={**plan.tiles, "fc1": Irregular(tuple(tiles))}))
    check(program)
    for d in range(5):
        assert of_actions(program, d) == expected_of(program, d)


# -- programs that are refused ---------------------------------------------------------------------------


def copies(loss: str = "n/2 @0,1", **more: Any) -> Program:
    """Data parallelism on two devices. loss: the tiling of the sum."""
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1", "sum": loss}
    return lower(mlp(), make_plan(mlp(), tiles, 2, **more))


def test_steps_in_any_order_may_not_share_collectives() -> None:
    program = copies("@0", schedule="threaded:2", steps=3)
    check(program)
    greedy = replace(program, plan=replace(program.plan, schedule="threaded:2:greedy"))
    with pytest.raises(InputError, match=r"0 and 1 may enter it before or after .* fix the order"):
        check(greedy)


def test_a_member_that_is_left_out_is_refused() -> None:
    program = copies()
    number = next(n for n, i in enumerate(program.instructions) if isinstance(i, Reduce))
    instructions = list(program.instructions)
    instructions[number] = replace(instructions[number], devices=(0,))
    with pytest.raises(
        InputError, match="device 1 takes part in its collectives over 0, 1, but does not"
    ):
        check_collective_order(replace(program, instructions=tuple(instructions)))


def test_every_transfer_is_an_entry() -> None:
    program = some_program(3)
    listed = list(entries(program))
    for number, i in enumerate(program.instructions):
        mine = [e for e in listed if e.instruction == number]
        if isinstance(i, Move):
            assert len(mine) == len({direction_of(m) for m in i.messages})
        elif isinstance(i, Reduce | Gather):
            assert [e.devices for e in mine] == list(groups_of(i))
        else:
            assert not mine


def test_an_instruction_of_several_dtypes_is_several_entries() -> None:
    program = copies(bucket=10**6)
    (reduce,) = (i for i in program.instructions if isinstance(i, Reduce))
    values = dict(program.graph.values)
    name = reduce.parameters[0]
    values[name] = replace(values[name], dtype=torch.bfloat16)
    mixed = replace(program, graph=replace(program.graph, values=values))
    assert [e.place for e in entries(mixed) if not e.communicator.direction] == [0, 1]
