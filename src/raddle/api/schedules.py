"""Pipeline schedules, by name or from a file with a row of actions for each worker.

`NAMES` are the named schedules; `MAKERS` has, by name, the functions for schedules with one stage on each
worker. `threaded:4` is no pipeline: four steps run at once, without stages.
"""

from __future__ import annotations

from raddle.files import read_text
from raddle.plans.schedule import Action, Schedule
from raddle.plans.schedule import schedule_from_text as schedule_from_text
from raddle.plans.schedule import schedule_to_text as schedule_to_text
from raddle.plans.schedules import MAKERS, NAMES, SCHEDULES, named_schedule

__all__ = [
    "MAKERS", "NAMES", "Action", "Schedule", "make_schedule", "named_schedule", "read_schedule",
    "schedule_from_text", "schedule_to_text",
]  # fmt: skip


def make_schedule(name: str, *, stages: int, microbatches: int, workers: int | None) -> Schedule:
    """Return a named schedule, or the schedule of a file.

    A file has its own numbers of stages, micro-batches and workers; the arguments are for names. workers:
    None: as many as the schedule needs for its stages.
    """
    if name in NAMES:
        # chunks: how many stages a worker has in this schedule
        rows = workers or max(1, stages // SCHEDULES[name].chunks)
        return named_schedule(name, stages, rows, microbatches)
    return schedule_from_text(read_schedule(name))


def read_schedule(name_or_path: str | None) -> str:
    """Return a schedule's name unchanged, or the rows of a schedule file as text; "" for None."""
    if not name_or_path or name_or_path in NAMES or name_or_path.startswith("threaded"):
        return name_or_path or ""
    advice = (
        f"choose {', '.join(NAMES)}, threaded:4, or a file with a row of actions for each worker"
    )
    return read_text(name_or_path, "schedule", missing_hint=advice)
