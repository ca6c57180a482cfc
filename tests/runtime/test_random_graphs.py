"""Random modules with random valid plans train as the plain module does, and send the simulated bytes.

Plans are either random in everything (uneven cuts, split reductions, irregular boxes, copies, devices), or
a baseline's plan with some operators tiled differently: these have long segments and native calls in
between.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from equality import Mismatch, Task
from hypothesis import Phase, given, note, reject, settings
from hypothesis import strategies as st
from random_modules import random_case
from random_plans import (
    random_plan,
    random_sync,
    random_tiling,
    with_legal_group,
    with_random_order,
)

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.notation import write_tiling
from raddle.plans.plan import Plan
from raddle.plans.tiling import Irregular, Tile, Tiling
from raddle.searches.baselines import BASELINES
from raddle.searches.planning import plan_for

STEPS = 3
SHARDS = 5  # the examples are divided among this many tests, so that pytest-xdist can run them in parallel


def some_plan(graph: Graph, rng: random.Random) -> Plan:
    devices = rng.randint(2, 4)
    more: dict[str, Any] = {
        "sync": random_sync(devices, rng),
        "microbatches": rng.randint(1, 2),
        "steps": STEPS,
    }
    if rng.random() < 0.15:
        more["recompute"] = scattered_blocks(graph, rng)
    plan = random_plan(graph, devices, rng.randrange(10**9), **more)
    tiles, share = dict(plan.tiles), rng.choice([0, 0, 0.2])
    if rng.random() < 0.5:
        try:
            method = rng.choice(list(BASELINES))
            tiles = dict(plan_for(graph, cluster(f"local:{devices}"), method).tiles)
        except InputError:  # fewer samples than devices
            pass
    for op in graph.ops:
        if rng.random() < share:
            tiles[op.name] = random_tiling(op, devices, rng)
        if rng.random() < share:
            tiles[op.name] = with_copies(tiles[op.name], devices, rng)
    return with_random_order(graph, with_legal_group(graph, replace(plan, tiles=tiles)), rng)


def scattered_blocks(graph: Graph, rng: random.Random) -> tuple[tuple[str, ...], ...]:
    blocks: list[list[str]] = [[], [], []]
    for op in graph.ops:
        rng.choice(blocks).append(op.name)
    return tuple(tuple(block) for block in blocks[1:] if block)


def with_copies(tiling: Tiling, devices: int, rng: random.Random) -> Irregular:
    """The same boxes, some of them copied to several devices."""
    more = [Tile(t.box, d) for t in tiling.tiles for d in range(devices) if rng.random() < 0.3]
    return Irregular(tuple(dict.fromkeys([*tiling.tiles, *more])))


def written(graph: Graph, plan: Plan) -> str:
    lines = [f"{op.name}: {write_tiling(op, plan.tiles[op.name])}" for op in graph.ops]
    names = ("devices", "sync", "bucket", "microbatches", "split_backward", "recompute")
    return "\n".join(lines + [f"{name} = {getattr(plan, name)!r}" for name in names])


def verify(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng.randrange(10**9))
    note(repr(case))
    task = Task(
        case.model, case.inputs, case.targets, case.loss, steps=STEPS, microbatches=2, lr=0.01
    )
    plan = some_plan(task.graph, rng)
    note(written(task.graph, plan))
    try:
        task.verify(plan)
    except Mismatch:
        if task.is_fragile(plan.steps, plan.microbatches):
            reject()
        raise


@pytest.mark.parametrize("shard", range(SHARDS))
@settings(
    phases=[Phase.explicit, Phase.generate]
)  # no shrinking: a smaller seed is not a smaller module
@given(seed=st.integers(0, 2**40))
def test_trains_as_the_plain_module_does(shard: int, seed: int) -> None:
    verify(seed * SHARDS + shard)
