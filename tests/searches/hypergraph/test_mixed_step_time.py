"""The search for mixed partitions by step time: proposals, and rounds that drop the slower walks."""

from __future__ import annotations

import numpy as np
from small_models import small

from raddle.clusters import cluster
from raddle.searches.baselines import BASELINES
from raddle.searches.hypergraph.mixed_blocks import build_blocks
from raddle.searches.hypergraph.mixed_step_time import PlanSimulator, Proposer, run_walks
from raddle.searches.stopwatch import Clock
from raddle.simulation.fast.evaluator import Evaluator

CLUSTER = cluster("p100:1x2")


def build_proposer(memory: float = 1e12) -> tuple[Proposer, PlanSimulator]:
    graph = small("lenet-tiny")[1]
    simulator = PlanSimulator(graph, CLUSTER, None, {"bn": "local"}, Clock(10.0))
    evaluator = Evaluator(graph, CLUSTER, simulator.plan(BASELINES["data"](graph, CLUSTER)))
    return Proposer(build_blocks(graph), evaluator, np.full(2, memory), seed=3), simulator


def test_the_best_of_a_walk_is_a_plan_of_that_time() -> None:
    proposer, simulator = build_proposer()
    (walk, *_) = proposer.start_walks({"data": BASELINES["data"](simulator.graph, CLUSTER)})
    proposer.evaluator.move(walk.tiles)
    before = walk.time
    for _ in range(100):
        proposer.try_proposal(walk)
    assert proposer.proposals == 100
    assert walk.best_time <= before
    proposer.evaluator.move(walk.best_tiles)
    assert proposer.evaluator.time() == walk.best_time
    assert simulator.simulate(walk.best_tiles).step_seconds > 0


def test_a_walk_stays_where_it_is_if_nothing_else_fits() -> None:
    proposer, simulator = build_proposer(memory=0)
    (walk, *_) = proposer.start_walks({"data": BASELINES["data"](simulator.graph, CLUSTER)})
    proposer.evaluator.move(walk.tiles)
    for _ in range(30):
        proposer.try_proposal(walk)
    assert walk.time == walk.best_time
    proposer.evaluator.move(walk.tiles)
    assert proposer.evaluator.time() == walk.time


def test_turns_end_with_the_clock_and_rank_all_walks() -> None:
    proposer, _ = build_proposer()
    walks, said = proposer.start_walks({}), list[str]()
    ranked = run_walks(proposer, list(walks), Clock(0.5), said.append)
    assert {id(walk) for walk in ranked} == {id(walk) for walk in walks}
    times = [walk.best_time for walk in ranked]
    assert times == sorted(times)
    assert all(" ms" in line for line in said)
    assert run_walks(proposer, list(walks), Clock(0.0), said.append) is not None
