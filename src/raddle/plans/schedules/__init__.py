"""The named schedules of pipelines, each from its paper. A new one is a file here that declares it."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from raddle.errors import InputError
from raddle.plans.named_schedule import Named
from raddle.plans.schedule import Schedule
from raddle.plans.schedules.asynchronous import stashed, updates, versions

__all__ = [
    "ASYNCHRONOUS", "MAKERS", "NAMES", "SCHEDULES", "named", "stashed", "updates", "versions",
]  # fmt: skip


def _declared() -> dict[str, Named]:
    """What the files of this folder declare: those with one stage a worker, then the others."""
    first = ["unidirectional", "zero_bubble", "bidirectional", "asynchronous"]  # the order of lists
    files = first + sorted({file.name for file in iter_modules(__path__)} - set(first))
    found = [own for file in files for own in import_module(f"{__name__}.{file}").NAMED]
    found.sort(key=lambda own: own.several is not None)
    if len({own.name for own in found}) < len(found):
        raise ImportError(f"two of the schedules have one name: {[own.name for own in found]}")
    return {own.name: own for own in found}


SCHEDULES = _declared()
NAMES = tuple(SCHEDULES)
MAKERS = {own.name: own.make for own in SCHEDULES.values() if own.several is None}
ASYNCHRONOUS = {own.name: own.rule for own in SCHEDULES.values() if own.rule}


def named(
    name: str, stages: int, workers: int, microbatches: int, *, per_step: int | None = None
) -> Schedule:
    """The schedule of a step or, where it has no flush, of a run with steps of `per_step` micro-batches."""
    if name not in NAMES:
        raise InputError(f"there is no schedule {name!r}: use one of {', '.join(NAMES)}.")
    if min(stages, workers, microbatches) < 1:
        raise InputError(
            f"{name} needs stages, workers and micro-batches, got {stages}, {workers} and {microbatches}: "
            "use at least one of each."
        )
    schedule = _make(name, stages, workers, microbatches)
    if per_step is not None and name in ASYNCHRONOUS:
        versions(schedule, per_step, ASYNCHRONOUS[name])  # raises if the rule cannot be kept
    elif per_step is not None and per_step != microbatches:
        raise InputError(
            f"{name} ends with every step, got {microbatches} micro-batches in steps of {per_step}: "
            "make one schedule a step."
        )
    return schedule


def _make(name: str, stages: int, workers: int, microbatches: int) -> Schedule:
    several = SCHEDULES[name].several
    if several is not None:
        if stages % workers:
            raise InputError(
                f"{name} needs as many stages on every worker, got {stages} on {workers}: "
                f"cut {-(-stages // workers) * workers} stages."
            )
        return several(stages, workers, microbatches)
    if stages != workers:
        raise InputError(
            f"{name} runs one stage a worker, got {stages} stages on {workers}: "
            f"cut {workers} stages, or use interleaved."
        )
    return SCHEDULES[name].make(stages, microbatches)
