"""Simulates a plan or a program on a cluster: timeline, metrics, peak memory, trace file.

`DrawnTimeline` is a timeline that notebooks show as a picture.

`simulate_steps` simulates `STEPS` steps, or more if steps overlap; `details` collects the metrics of the
timeline for `raddle simulate`. `Tasks` are the tasks of a program as arrays, and `run_tasks` computes when
each of them starts and ends. `Evaluator` is the fast simulation of a step, without a program.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from raddle.reports.notebook import timeline_html
from raddle.searches.predict import STEPS, details, simulate_steps
from raddle.simulation.engine import run_tasks
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.task_table import Tasks
from raddle.simulation.timeline import Timeline, simulate
from raddle.simulation.trace import write_trace

__all__ = [
    "STEPS",
    "DrawnTimeline",
    "Evaluator",
    "Tasks",
    "Timeline",
    "details",
    "drawn",
    "peak_bytes",
    "run_tasks",
    "simulate",
    "simulate_steps",
    "write_trace",
]  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class DrawnTimeline(Timeline):
    """A timeline that notebooks show as a picture: what each device does in the last step."""

    def _repr_html_(self) -> str:
        return timeline_html(self)


def drawn(timeline: Timeline) -> DrawnTimeline:
    """Return a timeline as one that notebooks show as a picture."""
    return DrawnTimeline(*(getattr(timeline, f.name) for f in fields(Timeline)))
