"""Measures the speed of searches, of the simulator, of proposals and of JIT compilation."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from common import graph_of, keep, machine

from experiments.flexflow.proposal_times import disable_shortening, engine_seconds
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.searches.baselines import BASELINES
from raddle.searches.flexflow.chain import Chain, start_chain
from raddle.searches.optcnn.method import choose_configurations
from raddle.searches.optcnn.tables import build_tables
from raddle.searches.plan_space import PlanSpace
from raddle.searches.planning import plan_for
from raddle.searches.settings import Settings
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.tasks import build_tasks

# (devices, whether degrees are powers of two only, target in seconds)
OPTCNN = [(4, True, 0.05), (16, True, 0.2), (64, True, 2.0), (256, True, 20.0), (16, False, 2.0)]
PROPOSALS = [  # (model, devices, number of proposals)
    ("inception_v3", 16, 400),
    ("inception_v3", 64, 300),
    ("nmt", 16, 300),
    ("nmt", 64, 150),
]
PER_DEVICE = {"inception_v3": 32, "nmt": 32}  # samples


def spec(count: int) -> str:
    """Return the preset with `count` P100 in nodes of 4."""
    return f"p100:{count // 4}x4"


def optcnn() -> None:
    """Times the search of OptCNN for inception_v3 without the capture: groups, tables, elimination."""
    for count, powers, target in OPTCNN:
        graph, on = graph_of("inception_v3", 32 * count), machine(spec(count))
        seconds = []
        for _ in range(8 if count < 64 else 3):
            begun = time.perf_counter()
            tables = build_tables(graph, on, powers_of_two=powers)
            _, solution = choose_configurations(tables)
            seconds.append(time.perf_counter() - begun)
        row = {
            "devices": count,
            "degrees": "powers of two" if powers else "all",
            "configurations": max(len(c) for c in tables.configurations),
            "seconds": round(min(seconds), 3),
            "first": round(seconds[0], 3),
            "target": target,
            "certified": solution.certified,
        }
        keep("optcnn-seconds", f"{count} {'powers' if powers else 'all'}", row)


def simulation() -> None:
    """Times the simulation of one data-parallel step: in full on all tasks, and fast with folded tasks."""
    for model, count in (("inception_v3", 16), ("nmt", 16), ("inception_v3", 64)):
        graph, on = graph_of(model, PER_DEVICE[model] * count), machine(spec(count))
        tasks = build_tasks(lower(graph, plan_for(graph, on, "data")), on)
        best = min(engine_seconds(tasks) for _ in range(10))
        evaluator = Evaluator(
            graph, on, Plan(BASELINES["data"](graph, on), len(on.devices), bn="local")
        )
        evaluator.time()
        folded = min(_timed(evaluator.time) for _ in range(10))
        keep(
            "simulation", f"{model} {count}",
            {
                "tasks": len(tasks.duration),
                "full_ms": round(1e3 * best, 3),
                "ns_a_task": round(1e9 * best / len(tasks.duration), 1),
                "folded_ms": round(1e3 * folded, 3),
                "folded_nodes": int(evaluator.counts[0]),
                "step_ms": round(evaluator.time() / 1e6, 1),
                "times_faster_than_running": round(evaluator.time() / 1e9 / folded),
            },
        )  # fmt: skip


def _timed(run: Any) -> float:
    """Returns the seconds of a call."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def proposals() -> None:
    """Times proposals of the search `flexflow` near data parallelism: short and in full, in turn.

    A proposal gives a random group of operators another split. "Short" joins consecutive tasks of a device
    and stops the simulation of a proposal that is too slow; "in full" simulates all tasks to the end. Both
    use the same random numbers, so they must take the same decisions.
    """
    for model, count, number in PROPOSALS:
        graph, on = graph_of(model, PER_DEVICE[model] * count), machine(spec(count))
        temperature = 0.003
        short, full, accepted, seconds = [], [], 0, {}
        for _ in range(2):
            for plain, times in ((False, short), (True, full)):
                chain = begun_chain(graph, on, temperature, plain)
                begun = time.perf_counter()
                for _ in range(number):
                    chain.step()
                times.append(time.perf_counter() - begun)
                seconds[plain] = chain.best_time
                accepted = chain.accepted
        assert seconds[False] == seconds[True], "a decision differed"
        keep(
            "proposals", f"{model} {count}",
            {
                "proposals": number,
                "temperature": temperature,
                "beta_per_ms": round(1e6 / (temperature * seconds[True]), 3),
                "start": "data parallel",
                "accepted_percent": round(100 * accepted / number, 1),
                "a_second": round(number / min(short)),
                "plain_a_second": round(number / min(full)),
                "ratio": round(min(full) / min(short), 2),
            },
        )  # fmt: skip


def begun_chain(graph: Any, on: Any, temperature: float, plain: bool) -> Chain:
    """Returns a Markov chain that starts at data parallelism; plain: proposals are simulated in full."""
    tiles = BASELINES["data"](graph, on)
    evaluator = Evaluator(graph, on, Plan(tiles, len(on.devices), bn="local"))
    if plain:
        disable_shortening(evaluator)
    space = PlanSpace(graph, on, Settings())
    return start_chain(space, evaluator, "data", tiles, seed=0, guided=0.0, temperature=temperature)


def compilation() -> None:
    """Times the JIT compilation of all functions in a new process, without and with a cache."""
    code = (
        "import time; from raddle.searches.jit_warmup import EVALUATOR; import torch; "
        "t = time.perf_counter(); EVALUATOR.warm_up(); print(time.perf_counter() - t)"
    )
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "NUMBA_CACHE_DIR": folder}
        cold, warm = (
            float(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                                 check=True).stdout)
            for _ in range(2)
        )  # fmt: skip
    keep(
        "compilation", "seconds", {"first": round(cold, 1), "cached": round(warm, 2), "target": 30}
    )


def run() -> None:
    """Runs all parts of this file."""
    compilation()
    simulation()
    proposals()
    optcnn()
