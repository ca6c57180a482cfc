"""The named schedules of pipelines, each from its paper."""

from __future__ import annotations

from collections.abc import Callable

from raddle.errors import InputError
from raddle.plans.schedule import Schedule
from raddle.plans.schedules.both_ways import chimera, gems, gems_basic
from raddle.plans.schedules.one_way import gpipe, interleaved, one_f_one_b, sequential
from raddle.plans.schedules.unflushed import pipedream, stashed, two_bw, updates, versions
from raddle.plans.schedules.zero_bubble import zb_h1, zb_h2

__all__ = ["ASYNCHRONOUS", "MAKERS", "NAMES", "named", "stashed", "updates", "versions"]

MAKERS: dict[str, Callable[[int, int], Schedule]] = {  # (stages, micro-batches), one stage a worker
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "gems": gems,
    "gems-basic": gems_basic,
    "chimera": chimera,
    "pipedream": pipedream,
    "2bw": two_bw,
}
NAMES = (*MAKERS, "interleaved")
ASYNCHRONOUS = {"pipedream": "latest", "2bw": "2bw"}  # the rule by which versions are chosen


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
    if name == "interleaved":
        if stages % workers:
            raise InputError(
                f"interleaved needs as many stages on every worker, got {stages} on {workers}: "
                f"cut {-(-stages // workers) * workers} stages."
            )
        return interleaved(stages, workers, microbatches)
    if stages != workers:
        raise InputError(
            f"{name} runs one stage a worker, got {stages} stages on {workers}: "
            f"cut {workers} stages, or use interleaved."
        )
    return MAKERS[name](stages, microbatches)
