"""The array evaluator says what simulating the program says: on random plans, clusters and moves."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import machine_of, random_plan, random_tiling
from small import small

from raddle.costs.compute import Compute
from raddle.costs.natives import natives_of
from raddle.costs.profile import Profile, entry, native_entry
from raddle.errors import InputError
from raddle.evaluation.evaluator import Evaluator
from raddle.graph.graph import Graph
from raddle.plan.plan import Plan
from raddle.plan.tiling import Tiling, whole
from raddle.program.lower import active_values, lower
from raddle.searches.planning import plan_for
from raddle.simulation.timeline import simulate

MODELS = ("lenet-tiny", "gpt-tiny", "resnet110-tiny", "unet-tiny", "nmt-tiny", "inception_v3-tiny")
MACHINES = ["p100:1x4", "p100:2x2", "k80:1x4", "local:4", "handling:4"]

plans = given(
    model=st.sampled_from(MODELS),
    machine=st.sampled_from(MACHINES),
    seed=st.integers(0, 2**30),
    bn=st.sampled_from(["global", "local"]),
    sync=st.sampled_from(["allreduce", "allreduce", "server", "server:1"]),
)


def simulated(graph: Graph, plan: Plan, machine: str) -> int:
    return int(simulate(lower(graph, plan), machine_of(machine)).end.max())


def evaluator(graph: Graph, plan: Plan, machine: str) -> Evaluator:
    settings = {"bn": plan.bn, "sync": plan.sync, "bucket": plan.bucket}
    return Evaluator(graph, machine_of(machine), plan.tiles, optimizer=plan.optimizer, **settings)


def drawn(model: str, seed: int, **more: Any) -> tuple[Graph, Plan]:
    graph = small(model)[1]
    return graph, random_plan(graph, 4, seed, split_backward=False, recompute=(), sums={}, **more)


@plans
def test_a_step_takes_as_long_as_in_the_simulation(
    model: str, machine: str, seed: int, bn: str, sync: str
) -> None:
    graph, plan = drawn(model, seed, bn=bn, sync=sync)
    try:
        expected = simulated(graph, plan, machine)
    except InputError:
        with pytest.raises(InputError):
            evaluator(graph, plan, machine)
        return
    own = evaluator(graph, plan, machine)
    assert own.time() == expected
    assert own.time(fold=False) == expected


def made_up_profile(graph: Graph, plan: Plan, kind: str, seed: int, known: float = 0.8) -> Profile:
    """Seconds of some tiles, of operators and of native calls."""
    rng = random.Random(seed)
    compute = Compute(graph, frozenset(active_values(graph)))
    natives = natives_of(graph)
    found: dict[str, float] = {}
    for op in graph.ops:
        for box in plan.tiles[op.name].boxes:
            for phase, wanted in (("F", None), ("B", compute.wanted[op.name, "B"])):
                names = [entry(op, box, phase, wanted, kind)]
                if op.name in natives and op is natives[op.name].main:
                    names.append(native_entry(natives[op.name], box, phase, wanted, kind))
                found |= {name: rng.random() * 1e-3 for name in names if rng.random() < known}
    return Profile(found)


@settings(max_examples=10)
@plans
def test_it_does_with_measured_operators_and_native_calls(
    model: str, machine: str, seed: int, bn: str, sync: str
) -> None:
    graph, plan = drawn(model, seed, bn=bn)
    on = machine_of(machine)
    profile = made_up_profile(graph, plan, on.devices[0].kind, seed)
    try:
        expected = int(simulate(lower(graph, plan), on, profile).end.max())
    except InputError:
        return
    own = Evaluator(
        graph, on, plan.tiles, optimizer=plan.optimizer, bn=bn, bucket=plan.bucket, profile=profile
    )
    assert own.time() == expected


@settings(max_examples=25)
@plans
def test_moves_and_limits_change_no_time_and_no_decision(
    model: str, machine: str, seed: int, bn: str, sync: str
) -> None:
    graph, plan = drawn(model, seed, bn="global", sync=sync)
    own = evaluator(graph, plan, machine)
    rng = random.Random(seed)
    tiles: dict[str, Tiling] = dict(plan.tiles)
    now = own.time()
    assert now is not None
    for _ in range(50):
        chosen = rng.sample(graph.ops, min(len(graph.ops), rng.randint(1, 3)))
        changes = {op.name: random_tiling(op, 4, rng) for op in chosen}
        undo = own.move(changes)
        full = own.time(fold=False)
        assert full is not None
        limit = int(now * rng.uniform(0.8, 1.3))
        assert own.time(limit) == (full if full <= limit else None)
        if full <= limit:
            tiles.update(changes)
            now = full
        else:
            own.restore(undo)
            assert own.time() == now
    fresh = Plan(tiles, 4, bn="global", sync=sync, bucket=plan.bucket)
    assert own.time() == simulated(graph, fresh, machine)


@pytest.mark.parametrize("model", ["nmt-tiny", "rnnlm-tiny", "resnet110-tiny", "gpt-tiny"])
def test_composites_fall_apart_and_come_together(model: str) -> None:
    """From data parallelism, where all are native calls, and back again."""
    graph, on = small(model)[1], machine_of("local:4")
    plan = replace(plan_for(graph, on, method="data"), bn="global")
    start: dict[str, Tiling] = dict(plan.tiles)
    profile = made_up_profile(graph, plan, on.devices[0].kind, 1, known=1.0)
    own = Evaluator(
        graph, on, start, optimizer=plan.optimizer, bn=plan.bn, bucket=plan.bucket, profile=profile
    )
    natives, rng = natives_of(graph), random.Random(2)
    first = own.time()
    assert all(own.together)
    for name in rng.sample(sorted(natives), 5):
        ops = {name, *natives[name].near[:1]}
        moved = {i: whole(graph.op(i).space.full.shape, [rng.randrange(4)]) for i in ops}
        undo = own.move(moved)
        assert not all(own.together)
        fresh = replace(plan, tiles={**start, **moved})
        assert own.time() == int(simulate(lower(graph, fresh), on, profile).end.max())
        own.restore(undo)
        assert own.time() == first
        own.move(moved)
        own.move({i: start[i] for i in ops})
        assert own.time() == first


@pytest.mark.slow
def test_forgetting_what_is_old_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, plan = drawn(MODELS[0], 3, bn="global")
    own = evaluator(graph, plan, MACHINES[0])
    before = own.time()
    monkeypatch.setattr("raddle.evaluation.evaluator.STORE", 0)
    own.move({})
    assert own.time() == before
