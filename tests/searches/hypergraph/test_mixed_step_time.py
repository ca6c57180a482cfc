"""Walks over mixed partitions by the time of a step: proposals, and turns of which the slower half ends."""

from __future__ import annotations

import numpy as np
from small_models import small

from raddle.clusters import cluster
from raddle.searches.baselines import BASELINES
from raddle.searches.hypergraph.mixed_blocks import build_blocks
from raddle.searches.hypergraph.mixed_step_time import Judge, Stepper, take_turns
from raddle.searches.settings import Clock
from raddle.simulation.fast.evaluator import Evaluator

ON = cluster("p100:1x2")


def stepper(memory: float = 1e12) -> tuple[Stepper, Judge]:
    graph = small("lenet-tiny")[1]
    judge = Judge(graph, ON, None, {"bn": "local"})
    evaluator = Evaluator(graph, ON, judge.plan(BASELINES["data"](graph, ON)))
    return Stepper(build_blocks(graph), evaluator, np.full(2, memory), seed=3), judge


def test_the_best_of_a_walk_is_a_plan_of_that_time() -> None:
    own, judge = stepper()
    (walk, *_) = own.walks({"data": BASELINES["data"](judge.graph, ON)})
    own.evaluator.move(walk.tiles)
    before = walk.time
    for _ in range(100):
        own.step(walk)
    assert own.proposals == 100
    assert walk.best_time <= before
    own.evaluator.move(walk.best_tiles)
    assert own.evaluator.time() == walk.best_time
    assert judge.simulated(walk.best_tiles).step_seconds > 0


def test_a_walk_stays_where_it_is_if_nothing_else_fits() -> None:
    own, judge = stepper(memory=0)
    (walk, *_) = own.walks({"data": BASELINES["data"](judge.graph, ON)})
    own.evaluator.move(walk.tiles)
    for _ in range(30):
        own.step(walk)
    assert walk.time == walk.best_time
    own.evaluator.move(walk.tiles)
    assert own.evaluator.time() == walk.time


def test_turns_end_with_the_clock_and_rank_all_walks() -> None:
    own, _ = stepper()
    walks, said = own.walks({}), list[str]()
    ranked = take_turns(own, list(walks), Clock(0.5), said.append)
    assert {id(walk) for walk in ranked} == {id(walk) for walk in walks}
    times = [walk.best_time for walk in ranked]
    assert times == sorted(times)
    assert all(" ms" in line for line in said)
    assert take_turns(own, list(walks), Clock(0.0), said.append) is not None
