"""Simulates a plan or a program on a cluster: timeline, metrics, peak memory, trace file."""

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
