"""Simulates a plan or a program on a cluster: timeline, metrics, peak memory, trace file.

`simulate_steps` simulates `STEPS` steps, or more if steps overlap; `details` collects the metrics of the
timeline for `raddle simulate`. `Tasks` are the tasks of a program as arrays, and `run_tasks` computes when
each of them starts and ends. `Evaluator` is the fast simulation of a step, without a program.
"""

from __future__ import annotations

from raddle.searches.predict import STEPS, details, simulate_steps
from raddle.simulation.engine import run_tasks
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.task_table import Tasks
from raddle.simulation.timeline import Timeline, simulate
from raddle.simulation.trace import write_trace

__all__ = [
    "STEPS",
    "Evaluator",
    "Tasks",
    "Timeline",
    "details",
    "peak_bytes",
    "run_tasks",
    "simulate",
    "simulate_steps",
    "write_trace",
]  # fmt: skip
