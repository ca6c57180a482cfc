"""Describes pipeline schedules for `raddle schedule`: data for `--json`, pictures for a terminal.

A picture has a line of actions for each worker, as "F0 F1 B0 B1": F is a forward, B a backward, with the
number of its micro-batch. A flush is the end of a step at which all micro-batches have ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raddle.plans.schedule import Schedule, bubble, draw_schedule, peak_alive, wait_lines
from raddle.plans.schedules import SCHEDULES, peak_versions


def schedule_names() -> list[dict[str, str]]:
    """Return the "name" of each schedule that raddle has, and its summary in one line, "what"."""
    return [{"name": entry.name, "what": entry.summary} for entry in SCHEDULES.values()]


def describe_schedule(schedule: Schedule, name: str, backward: int = 1) -> dict[str, Any]:
    """Return a schedule's picture, its bubble (idle share of the time) and its memory use.

    name: of the schedule, or the path of its file. backward: duration of a backward, where a forward takes
    1. "picture": a line of actions for each worker. "waits": lines such as "F1.0 after B0.0" (forward of
    micro-batch 1 on stage 0 after the backward of micro-batch 0), where an action waits for another.
    "alive": by worker, the largest number of pairs of stage and micro-batch whose activations are held at
    once. "versions": by worker, the largest number of weight versions held at once; only for schedules
    without a flush.
    """
    result: dict[str, Any] = {
        "name": name,
        "stages": schedule.stages,
        "workers": len(schedule.rows),
        "microbatches": schedule.microbatches,
        "picture": draw_schedule(schedule),
        "waits": wait_lines(schedule),
        "bubble": float(bubble(schedule, backward=backward)),
        "alive": peak_alive(schedule),
    }
    entry = SCHEDULES.get(name)
    # version_rule: which weight version a forward uses; only schedules without a flush have one
    if entry is not None and entry.version_rule:
        microbatches = schedule.microbatches  # of all steps
        # entry.per_step(stages): the micro-batches of one step; None: any number, here all
        micro_batches_per_step = (
            max(1, min(microbatches, entry.per_step(schedule.stages)))
            if entry.per_step
            else microbatches
        )
        if microbatches % micro_batches_per_step == 0:
            result["versions"] = peak_versions(schedule, micro_batches_per_step, entry.version_rule)
    return result


def show_names(rows: Sequence[Mapping[str, str]]) -> None:
    """Print the list of `schedule_names`."""
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:{width}}  {row['what']}")
    print("raddle schedule NAME --stages 4 --microbatches 8 draws one")


def show_schedule(result: Mapping[str, Any]) -> None:
    """Print the result of `describe_schedule`."""
    for worker, row in enumerate(result["picture"]):
        print(f"{worker:3}  {row}")
    for line in result["waits"]:
        print(line)
    print(f"# idle {100 * result['bubble']:.1f} % of the time; alive at most, by worker:", end=" ")
    print(*result["alive"], sep=", ")
    if "versions" in result:
        print("# versions of weights, by worker:", ", ".join(map(str, result["versions"])))
