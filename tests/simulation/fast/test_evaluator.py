"""The evaluator gives the time of the simulation, or refuses: on random plans, clusters and moves."""

from __future__ import annotations

import random
from dataclasses import MISSING, Field, fields, replace
from typing import Any

import pytest
import torch
from drawn_blocks import drawn_blocks
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import cluster_named, every_sync, random_plan, random_tiling, sync_texts
from small_models import small

from raddle.clusters import cluster
from raddle.costs.compute import ComputeCosts
from raddle.costs.native_calls import find_native_calls
from raddle.costs.profile import Profile, native_call_key, profile_key
from raddle.errors import InputError
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph
from raddle.plans.optimizers import OPTIMIZERS
from raddle.plans.pipelining import THREADED, cut_stages
from raddle.plans.plan import BN_SCOPES, Plan
from raddle.plans.plan_file import DTYPES
from raddle.plans.schedules import NAMES
from raddle.plans.sync import read_sync
from raddle.plans.tiling import Tiling, whole_tiling
from raddle.program.lower import lower
from raddle.searches.planning import plan_for
from raddle.simulation.fast.coverage import DESCRIPTIVE_FIELDS, TIMED_FIELDS, unsupported
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.timeline import simulate

MODELS = ("lenet-tiny", "gpt-tiny", "resnet110-tiny", "unet-tiny", "nmt-tiny", "inception_v3-tiny")
MACHINES = ["p100:1x4", "p100:2x2", "k80:1x4", "local:4", "host_overhead:4"]
GRAPHS = [(name, dtype) for name in MODELS for dtype in ("float64", "float32")] + [
    ("lenet-tiny", dtype) for dtype in DTYPES
]


syncs = sync_texts(4)
precisions = st.sampled_from(
    ["float32", "tf32", "bf16", "fp16", "bf16:pure", "bf16,gather=bf16", "bf16:pure,reduce=float32",
     "float32,gather=fp16,reduce=bf16"]
)  # fmt: skip


def for_sync(precision: str, sync: str) -> str:
    """The precision, without the options of ZeRO if the sync kind shards no parameters."""
    return precision if read_sync(sync).shards else precision.split(",")[0]


plans = given(
    model=st.sampled_from(MODELS),
    machine=st.sampled_from(MACHINES),
    seed=st.integers(0, 2**30),
    bn=st.sampled_from(BN_SCOPES),
    sync=syncs,
)


def simulated_nanoseconds(graph: Graph, plan: Plan, machine: str) -> int:
    return int(simulate(lower(graph, plan), cluster_named(machine)).end.max())


def draw_plan(graph: Graph, seed: int, **more: Any) -> Plan:
    """A random plan; all options have their defaults, except those in `more`."""
    nothing: dict[str, Any] = {"split_backward": False, "recompute": (), "sums": {}}
    return random_plan(graph, 4, seed, **(nothing | more))


@given(
    of=st.sampled_from(GRAPHS),
    machine=st.sampled_from(MACHINES),
    seed=st.integers(0, 2**30),
    sync=syncs,
    bn=st.sampled_from(BN_SCOPES),
    optimizer=st.sampled_from([*OPTIMIZERS, "another"]),
    precision=precisions,
    batch=st.integers(0, 9),
)
def test_a_step_takes_as_long_as_in_the_simulation(
    of: tuple[str, str], machine: str, seed: int, sync: str, bn: str, optimizer: str, precision: str,
    batch: int,
) -> None:  # fmt: skip
    graph = small(of[0], getattr(torch, of[1]))[1]
    plan = draw_plan(graph, seed, bn="global", sync=sync, optimizer=optimizer, batch=batch)
    plan = replace(plan, bn=bn, order=(), precision=for_sync(precision, sync))
    assert unsupported(plan) is None
    try:
        expected = simulated_nanoseconds(graph, plan, machine)
    except InputError:
        with pytest.raises(InputError):
            Evaluator(graph, cluster_named(machine), plan)
        return
    evaluator = Evaluator(graph, cluster_named(machine), plan)
    assert evaluator.time() == expected
    assert evaluator.time(fold=False) == expected


@given(
    seed=st.integers(0, 2**30),
    sync=sync_texts(4),
    microbatches=st.integers(1, 3),
    steps=st.integers(1, 2),
    schedule=st.sampled_from(["", *NAMES, f"{THREADED}:2", f"{THREADED}:3:greedy"]),
    cuts=st.lists(st.sampled_from([op.name for op in small("lenet-tiny")[1].ops]), max_size=2),
)
def test_options_are_timed_or_refused(
    seed: int, sync: str, microbatches: int, steps: int, schedule: str, cuts: list[str]
) -> None:
    """Named devices of sums, recomputation and a split backward are random too."""
    graph = small("lenet-tiny")[1]
    plan = random_plan(graph, 4, seed, sync=sync, microbatches=microbatches, steps=steps)
    stages = cut_stages(graph, cuts) if cuts else ()
    plan = replace(plan, stages=stages, schedule=schedule)
    if unsupported(plan) is None:
        assert Evaluator(graph, cluster_named("local:4"), plan).time() == simulated_nanoseconds(
            graph, plan, "local:4"
        )
        return
    with pytest.raises(InputError, match=r"does not time|is '|orders"):
        Evaluator(graph, cluster_named("local:4"), plan)


@pytest.mark.parametrize("field", fields(Plan), ids=lambda field: field.name)
def test_every_field_of_a_plan_is_timed_described_or_refused(field: Field[Any]) -> None:
    graph, on = small("mlp-tiny")[1], cluster("local:2")
    plan = Plan(plan_for(graph, on, "data").tiles, 2)
    assert unsupported(plan) is None
    if field.name in TIMED_FIELDS | DESCRIPTIVE_FIELDS:
        return
    default = field.default if field.default_factory is MISSING else field.default_factory()
    other = {int: 2, bool: True, str: "gpipe", tuple: (0,), dict: {"a": 1}}[type(default)]
    reason = unsupported(replace(plan, **{field.name: other}))
    assert reason is not None
    with pytest.raises(InputError, match="sums of bundles" if field.name == "order" else reason):
        Evaluator(graph, on, replace(plan, **{field.name: other}))


@pytest.mark.parametrize("sync", every_sync())
@pytest.mark.parametrize("bn", BN_SCOPES)
def test_what_is_exact_is_not_refused(sync: str, bn: str) -> None:
    for optimizer in OPTIMIZERS:
        plan = Plan({}, 4, bn=bn, sync=sync, optimizer=optimizer, bucket=7, batch=3, method="data")
        assert unsupported(plan) is None


def test_settings_that_cannot_be() -> None:
    graph, on = small("mlp-tiny")[1], cluster("local:2")
    plan = Plan(plan_for(graph, on, "data").tiles, 2)
    with pytest.raises(InputError, match="devices 0 to 1"):
        Evaluator(graph, on, replace(plan, sync="server:2"))
    with pytest.raises(InputError, match="choose one of global, local, microbatch"):
        Evaluator(graph, on, replace(plan, bn="lokal"))
    with pytest.raises(InputError, match="the plan has 2 devices, 'local:4' 4"):
        Evaluator(graph, cluster("local:4"), plan)


def made_up_profile(
    graph: Graph, plan: Plan, kind: str, seed: int, fraction: float = 0.8
) -> Profile:
    """A profile with random seconds for a fraction of the tiles of operators and native calls."""
    rng = random.Random(seed)
    costs = ComputeCosts(graph, active_values(graph))
    native_calls = find_native_calls(graph)
    seconds: dict[str, float] = {}
    for op in graph.ops:
        for box in plan.tiles[op.name].boxes:
            for phase, grad_operands in (("F", None), ("B", costs.grad_operands[op.name, "B"])):
                names = [profile_key(op, box, phase, grad_operands, kind)]
                if op.name in native_calls and op is native_calls[op.name].main:
                    names.append(
                        native_call_key(native_calls[op.name], box, phase, grad_operands, kind)
                    )
                seconds |= {name: rng.random() * 1e-3 for name in names if rng.random() < fraction}
    return Profile(seconds)


@settings(max_examples=10)
@plans
def test_a_step_takes_as_long_with_measured_operators_and_native_calls(
    model: str, machine: str, seed: int, bn: str, sync: str
) -> None:
    graph = small(model)[1]
    plan, on = draw_plan(graph, seed, bn="global", sync=sync), cluster_named(machine)
    plan = replace(plan, bn=bn, order=())
    profile = made_up_profile(graph, plan, on.devices[0].kind, seed)
    if seed % 2:
        profile.blocks = drawn_blocks(graph, on.devices[0], seed)
    try:
        expected = int(simulate(lower(graph, plan), on, profile).end.max())
    except InputError:
        return
    assert Evaluator(graph, on, plan, profile).time() == expected


@settings(max_examples=25)
@plans
def test_moves_and_limits_change_no_time_and_no_decision(
    model: str, machine: str, seed: int, bn: str, sync: str
) -> None:
    graph = small(model)[1]
    plan = draw_plan(graph, seed, bn="global", sync=sync)
    plan = replace(plan, order=())
    evaluator = Evaluator(graph, cluster_named(machine), plan)
    rng = random.Random(seed)
    tiles: dict[str, Tiling] = dict(plan.tiles)
    now = evaluator.time()
    assert now is not None
    for _ in range(50):
        chosen = rng.sample(graph.ops, min(len(graph.ops), rng.randint(1, 3)))
        changes = {op.name: random_tiling(op, 4, rng) for op in chosen}
        undo = evaluator.move(changes)
        full = evaluator.time(fold=False)
        assert full is not None
        limit = int(now * rng.uniform(0.8, 1.3))
        assert evaluator.time(limit) == (full if full <= limit else None)
        if full <= limit:
            tiles.update(changes)
            now = full
        else:
            evaluator.restore(undo)
            assert evaluator.time() == now
    fresh = Plan(tiles, 4, bn="global", sync=sync, bucket=plan.bucket)
    assert evaluator.time() == simulated_nanoseconds(graph, fresh, machine)


@pytest.mark.parametrize("model", ["nmt-tiny", "rnnlm-tiny", "resnet110-tiny", "gpt-tiny"])
def test_composites_fall_apart_and_come_together(model: str) -> None:
    """Starts from data parallelism, where all composites are native calls, and returns to it."""
    graph, on = small(model)[1], cluster_named("local:4")
    plan = replace(plan_for(graph, on, method="data"), bn="global")
    start: dict[str, Tiling] = dict(plan.tiles)
    profile = made_up_profile(graph, plan, on.devices[0].kind, 1, fraction=1.0)
    evaluator = Evaluator(graph, on, plan, profile)
    native_calls, rng = find_native_calls(graph), random.Random(2)
    first = evaluator.time()
    assert all(evaluator.composites.fused)
    for name in rng.sample(sorted(native_calls), 5):
        ops = {name, *native_calls[name].neighbours[:1]}
        moved = {i: whole_tiling(graph.op(i).space.full.shape, [rng.randrange(4)]) for i in ops}
        undo = evaluator.move(moved)
        assert not all(evaluator.composites.fused)
        fresh = replace(plan, tiles={**start, **moved})
        assert evaluator.time() == int(simulate(lower(graph, fresh), on, profile).end.max())
        evaluator.restore(undo)
        assert evaluator.time() == first
        evaluator.move(moved)
        evaluator.move({i: start[i] for i in ops})
        assert evaluator.time() == first


@pytest.mark.slow
def test_forgetting_what_is_old_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small(MODELS[0])[1]
    evaluator = Evaluator(graph, cluster_named(MACHINES[0]), draw_plan(graph, 3, bn="global"))
    before = evaluator.time()
    monkeypatch.setattr("raddle.simulation.fast.evaluator.MAX_STORE_BYTES", 0)
    evaluator.move({})
    assert evaluator.time() == before
