"""Asynchronous schedules: several steps without a flush between them, and their weight versions.

Micro-batches are numbered over all steps: m belongs to step m // per_step, where per_step is the number of
micro-batches of a step. A worker updates its parameters as soon as it has all gradients of a step. Version
v of the weights has had v updates. The backward of a micro-batch uses the version of its forward, which is
stashed until then.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from raddle.errors import InputError
from raddle.plans.named_schedule import NamedSchedule
from raddle.plans.schedule import Schedule
from raddle.plans.schedules.unidirectional import one_f_one_b

# s: stage, m: micro-batch, w: worker, k: step, v: version, P: stages and workers. In the picture, a line is
# a worker and time goes to the right; F1 is the forward of micro-batch 1.


def pipedream(stages: int, microbatches: int) -> Schedule:
    """1F1B over all steps: after the warm-up no worker idles. PipeDream, Narayanan et al. 2019 (SOSP).

    F0 F1 F2 .. .. B0 F3 B1 F4 B2 F5 B3 .. B4 .. B5
    .. F0 F1 .. B0 F2 B1 F3 B2 F4 B3 F5 B4 .. B5 ..
    .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 .. ..

    Differs from the paper: a stage is on one worker, not on several that take turns.
    """
    return one_f_one_b(stages, microbatches)


def two_bw(stages: int, microbatches: int) -> Schedule:
    """PipeDream's rows, but step k uses version k - 1 of the weights, so two versions are enough.

    PipeDream-2BW, Narayanan et al. 2021 (arXiv 2006.09503, section 3).

    Differs from the paper: the paper requires per_step >= P; P - 1 is enough for two versions.
    """
    return one_f_one_b(stages, microbatches)


def update_positions(schedule: Schedule, per_step: int) -> list[list[int]]:
    """Returns, by worker and step, how many of the worker's actions come before its update of that step."""
    steps = _steps(schedule, per_step)
    points = []
    for row in schedule.rows:
        ends = [0] * steps
        for i, action in enumerate(row):
            if action.phase == schedule.last_phase:
                ends[action.micro_batch // per_step] = i + 1
        points.append(list(accumulate(ends, max)))  # updates are made in the order of steps
    return points


def versions_used(
    schedule: Schedule, per_step: int, version_rule: str
) -> dict[tuple[int, int], int]:
    """Returns, by (stage, micro-batch), the version that its forward and its backward use.

    version_rule: `latest`: with all updates that the worker has made before the forward; `2bw`: version
    k - 1 in step k (0 in step 0).
    """
    if version_rule not in ("latest", "2bw"):
        raise InputError(f"there is no rule {version_rule!r} for versions: use latest or 2bw.")
    used = {}
    # points: the positions of a worker's updates in its row, by step
    for row, points in zip(schedule.rows, update_positions(schedule, per_step), strict=True):
        for i, action in enumerate(row):
            if action.phase != "F":
                continue
            latest = bisect_right(points, i)  # the number of updates before action i
            delayed = max(0, action.micro_batch // per_step - 1)
            if version_rule == "2bw" and delayed > latest:
                raise InputError(
                    f"micro-batch {action.micro_batch} on stage {action.stage} needs version {delayed}, "
                    f"but its worker is at {latest}: use more than {per_step} micro-batches per step."
                )
            used[action.stage, action.micro_batch] = latest if version_rule == "latest" else delayed
    return used


def peak_versions(schedule: Schedule, per_step: int, version_rule: str) -> list[int]:
    """Returns the most versions that each worker has at a time: the newest, and those for backwards."""
    used = versions_used(schedule, per_step, version_rule)
    peaks = []
    for row, points in zip(schedule.rows, update_positions(schedule, per_step), strict=True):
        # By version, the position in the row of the last action that needs it. The newest version is needed
        # until the next update.
        last_uses = [point - 1 for point in points] + [len(row) - 1]
        for i, action in enumerate(row):
            if action.phase in "FB":
                v = used[action.stage, action.micro_batch]
                last_uses[v] = max(last_uses[v], i)
        # By position in the row, the versions that come into memory, less those that leave it.
        changes = [0] * (len(row) + 1)
        # first: the position at which a version is made: 0 for version 0, for others that of the update
        for first, last in zip([0, *points], last_uses, strict=True):
            if first <= last:
                changes[first] += 1
                changes[last + 1] -= 1
        peaks.append(max(accumulate(changes)))
    return peaks


def _steps(schedule: Schedule, per_step: int) -> int:
    """Returns the number of steps. Raises InputError if the last one would have too few micro-batches."""
    if per_step < 1 or schedule.microbatches % per_step:
        raise InputError(
            f"{schedule.microbatches} micro-batches are not whole steps of {per_step}: "
            "use a multiple of the micro-batches per step."
        )
    return schedule.microbatches // per_step


NAMED = (
    NamedSchedule(
        "pipedream", pipedream, "1F1B without a flush: every step updates, weights are stashed",
        version_rule="latest", per_step=lambda stages: 1, allows_replicas=True,
    ),
    NamedSchedule(
        "2bw", two_bw, "1F1B without a flush and two versions of the weights",
        version_rule="2bw", per_step=lambda stages: stages, allows_replicas=True,
    ),
)  # fmt: skip
