"""Chains decide as with full simulations; a seed gives the same plan; an interrupt keeps the best."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.searches.baselines import BASELINES
from raddle.searches.flexflow.chain import Chain, start_chain
from raddle.searches.flexflow.method import flexflow
from raddle.searches.flexflow.multi_chain import MultiChain
from raddle.searches.plan_space import PlanSpace
from raddle.searches.settings import Settings
from raddle.searches.stopwatch import Clock
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.timeline import simulate

MODELS = ("lenet-tiny", "resnet110-tiny", "rnnlm-tiny", "gpt-tiny", "inception_v3-tiny")
MACHINES = ("p100:1x4", "p100:2x2", "local:4")


def batch_statistics(model: str) -> str:
    """Local ones, except where data parallelism on 4 devices would have one value per channel."""
    return "global" if model == "inception_v3-tiny" else "local"


def new_chain(model: str, machine: str, seed: int, temperature: float) -> Chain:
    graph, on = small(model)[1], cluster(machine)
    space = PlanSpace(graph, on, Settings(reduction=True, powers_of_two=False))
    tiles = BASELINES["data"](graph, on)
    return start_chain(
        space,
        Evaluator(graph, on, Plan(tiles, len(on.devices), bn=batch_statistics(model))),
        "data",
        tiles,
        seed=seed,
        temperature=temperature,
    )


@settings(max_examples=15)
@given(st.sampled_from(MODELS), st.sampled_from(MACHINES), st.integers(0, 2**20), st.booleans())
def test_decisions_are_those_of_full_simulation(
    model: str, machine: str, seed: int, hot: bool
) -> None:
    """A chain with shortened simulations decides like one that simulates every proposal to its end."""
    short = new_chain(model, machine, seed, temperature=0.2 if hot else 0.003)
    full = new_chain(model, machine, seed, temperature=short.temperature)
    plain = full.evaluator
    shortened = plain.time

    def unlimited(limit: int | None = None) -> int | None:
        time = shortened(fold=False)
        assert time is not None
        return time if limit is None or time <= limit else None

    plain.time = unlimited  # type: ignore[method-assign]
    for _ in range(60):
        assert short.step() == full.step()
        assert (short.time, short.best_time, short.accepted) == (
            full.time,
            full.best_time,
            full.accepted,
        )
    assert short.tiles == full.tiles
    program = lower(short.space.graph, Plan(short.tiles, 4, bn=batch_statistics(model)))
    assert short.time == simulate(program, short.space.cluster).end.max()


def test_what_is_accepted_follows_the_temperature() -> None:
    """The share of accepted proposals is exp(-difference / temperature): Metropolis's rule."""
    chain_ = new_chain("lenet-tiny", "p100:1x4", 0, temperature=0.01)
    rng = random.Random(0)
    draws = [chain_._accepted_slowdown(rng.random()) for _ in range(4000)]
    scale = chain_.temperature * chain_.best_time
    for times in (0.5, 1.0, 2.0):
        share = sum(draw >= times * scale for draw in draws) / len(draws)
        assert share == pytest.approx(math.exp(-times), abs=0.03)


def test_the_same_seed_gives_the_same_plan() -> None:
    graph, on = small("lenet-tiny")[1], cluster("p100:1x4")
    starts = {"data": BASELINES["data"](graph, on)}
    first, again, other = (
        flexflow(graph, on, Settings(budget=60, proposals=600, seed=seed), starts)
        for seed in (1, 1, 2)
    )
    assert first.stopped == again.stopped == "proposals"
    assert first.tiles == again.tiles
    assert first.accepted == again.accepted
    assert (first.accepted, first.tiles) != (other.accepted, other.tiles)
    times = [p.best_ms for p in first.history]
    assert times == sorted(times, reverse=True)


def test_an_interrupt_keeps_the_best_so_far() -> None:
    graph, on = small("lenet-tiny")[1], cluster("p100:1x4")
    progress = []

    def interrupt(step: object) -> None:
        progress.append(step)
        if len(progress) == 2:
            raise KeyboardInterrupt

    options = Settings(budget=60, on_progress=interrupt)
    result = flexflow(graph, on, options, {"data": BASELINES["data"](graph, on)})
    assert result.stopped == "interrupt"
    lower(graph, Plan(result.tiles, 4, bn="local"))


def test_nothing_is_proposed_after_the_budget() -> None:
    chain_ = new_chain("lenet-tiny", "p100:1x4", 0, temperature=0.003)
    multi_chain = MultiChain(chain_.space, chain_.evaluator, Clock(0.0), Settings(budget=0.0))
    multi_chain.add_chain("data", chain_.tiles)
    multi_chain.run(0.0)
    assert multi_chain.proposals == 0
    assert multi_chain.stopped == "budget"


def test_starts_that_are_no_valid_plans_are_left_out() -> None:
    """Data parallelism would give batch norms of 4 devices one value per channel each."""
    graph, on = small("inception_v3-tiny")[1], cluster("local:4")
    assert graph.batch == 4
    starts = {name: BASELINES[name](graph, on) for name in ("data", "layerwise")}
    limits = Settings(proposals=3, budget=60)
    assert flexflow(graph, on, limits, starts, random_too=False).start == "layerwise"
    with pytest.raises(InputError, match="one value of each channel"):
        flexflow(graph, on, limits, {"data": starts["data"]}, random_too=False)
