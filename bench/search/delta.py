"""Estimates whether FlexFlow's delta simulation would pay: how much of a timeline does a move change?

A move gives a group of operators another split. A delta simulation computes only the times that a move
changes, so it has to visit every task whose time changes at least once. The ideal delta simulation of this
estimate knows these tasks in advance, and spends on each the time of a task in the full simulation.
"""

from __future__ import annotations

import random

import numpy as np
from common import graph_of, keep, machine

from experiments.flexflow.proposal_times import engine_seconds, shortened_seconds, task_times
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.searches.baselines import BASELINES
from raddle.searches.plan_space import PlanSpace
from raddle.searches.settings import Settings
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.timeline import simulate

MOVES = 40


def run() -> None:
    """Measures two models on 16 devices: the share of tasks that random moves change, and times."""
    for model, count in (("inception_v3", 16), ("nmt", 16)):
        graph, on = graph_of(model, 32 * count), machine(f"p100:{count // 4}x4")
        space, rng = PlanSpace(graph, on, Settings()), random.Random(0)
        tiles = BASELINES["data"](graph, on)
        before = simulate(lower(graph, Plan(tiles, count, bn="local")), on)
        evaluator = Evaluator(graph, on, Plan(tiles, len(on.devices), bn="local"))
        base = evaluator.time()
        assert base is not None
        times_before = task_times(before)
        changed, moves = [], []
        for _ in range(MOVES):
            g = rng.choice(space.unpinned)
            move = space.changes(
                tiles, {g: space.on_random_devices(rng.choice(space.degrees(g)), rng)}
            )
            after = simulate(lower(graph, Plan({**tiles, **move}, count, bn="local")), on)
            now = task_times(after)
            changed.append(
                sum(times_before.get(key) != when for key, when in now.items()) / len(now)
            )
            moves.append(move)
        short = [shortened_seconds(evaluator, move, int(1.01 * base)) for move in moves]
        tasks = len(before.start)
        engine = min(engine_seconds(before.tasks) for _ in range(10))
        ideal = float(np.mean(changed)) * engine
        keep(
            "delta", f"{model} {count}",
            {
                "moves": MOVES,
                "tasks": tasks,
                "changed_percent_median": round(100 * float(np.median(changed)), 1),
                "changed_percent_mean": round(100 * float(np.mean(changed)), 1),
                "full_ms": round(1e3 * engine, 3),
                "ideal_delta_ms": round(1e3 * ideal, 3),
                "shortened_ms": round(1e3 * float(np.mean(short)), 3),
                "shortened_over_ideal_delta": round(ideal / float(np.mean(short)), 2),
            },
        )  # fmt: skip
