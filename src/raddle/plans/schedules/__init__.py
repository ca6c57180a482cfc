"""The named pipeline schedules, each from its paper.

To add one, put a file into this folder that defines NAMED, a tuple of NamedSchedule.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from raddle.errors import InputError
from raddle.plans.named_schedule import NamedSchedule
from raddle.plans.schedule import Schedule
from raddle.plans.schedules.asynchronous import peak_versions, update_positions, versions_used

__all__ = [
    "ASYNCHRONOUS", "MAKERS", "NAMES", "SCHEDULES", "named_schedule", "peak_versions",
    "update_positions", "versions_used",
]  # fmt: skip


def _collect_schedules() -> dict[str, NamedSchedule]:
    """Returns the schedules of all files in this folder, by name: first those with one stage per worker."""
    # Lists show the schedules in this order.
    first = [
        "unidirectional",
        "zero_bubble",
        "bidirectional",
        "asynchronous",
    ]
    files = first + sorted({file.name for file in iter_modules(__path__)} - set(first))
    schedules = [
        schedule for file in files for schedule in import_module(f"{__name__}.{file}").NAMED
    ]
    schedules.sort(key=lambda schedule: schedule.make_chunked is not None)
    if len({schedule.name for schedule in schedules}) < len(schedules):
        raise ImportError(
            f"two of the schedules have one name: {[schedule.name for schedule in schedules]}"
        )
    return {schedule.name: schedule for schedule in schedules}


SCHEDULES = _collect_schedules()
NAMES = tuple(SCHEDULES)
# By name, the function that makes a schedule with one stage on each worker.
MAKERS = {
    schedule.name: schedule.make for schedule in SCHEDULES.values() if schedule.make_chunked is None
}
# By name of a schedule without a flush, the rule for weight versions (asynchronous.py).
ASYNCHRONOUS = {
    schedule.name: schedule.version_rule for schedule in SCHEDULES.values() if schedule.version_rule
}


def named_schedule(
    name: str, stages: int, workers: int, microbatches: int, *, per_step: int | None = None
) -> Schedule:
    """Returns the schedule of one step or, if it has no flush, of several steps.

    per_step: micro-batches of one step; `microbatches` counts those of all steps. If per_step
    is given, InputError is raised unless both numbers fit the schedule.
    """
    if name not in NAMES:
        raise InputError(f"there is no schedule {name!r}: use one of {', '.join(NAMES)}.")
    if min(stages, workers, microbatches) < 1:
        raise InputError(
            f"{name} needs stages, workers and micro-batches, got {stages}, {workers} and {microbatches}: "
            "use at least one of each."
        )
    schedule = _make(name, stages, workers, microbatches)
    if per_step is not None and name in ASYNCHRONOUS:
        versions_used(schedule, per_step, ASYNCHRONOUS[name])  # raises if the rule cannot be kept
    elif per_step is not None and per_step != microbatches:
        raise InputError(
            f"{name} ends with every step, got {microbatches} micro-batches in steps of {per_step}: "
            "make one schedule per step."
        )
    return schedule


def _make(name: str, stages: int, workers: int, microbatches: int) -> Schedule:
    """Makes the rows of a named schedule, if the numbers of stages and workers go together."""
    make_chunked = SCHEDULES[name].make_chunked
    if make_chunked is not None:
        if stages % workers:
            raise InputError(
                f"{name} needs as many stages on every worker, got {stages} on {workers}: "
                f"cut {-(-stages // workers) * workers} stages."
            )
        return make_chunked(stages, workers, microbatches)
    if stages != workers:
        raise InputError(
            f"{name} runs one stage per worker, got {stages} stages on {workers}: "
            f"cut {workers} stages, or use interleaved."
        )
    return SCHEDULES[name].make(stages, microbatches)
