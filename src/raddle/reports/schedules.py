"""Schedules of pipelines: data for scripts, pictures for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raddle.plans.schedule import Schedule, alive, bubble, rows, wait_lines
from raddle.plans.schedules import ASYNCHRONOUS, NAMES, stashed

WHAT = {
    "sequential": "plain model parallelism: one micro-batch after the other",
    "gpipe": "all forwards, then all backwards",
    "1f1b": "a backward as soon as it can be: fewer micro-batches are alive",
    "interleaved": "1F1B with several stages on each worker: a smaller bubble, more messages",
    "zb-h1": "zero bubble: gradients of parameters apart, where a worker would idle",
    "zb-h2": "zero bubble with more memory and less idling",
    "gems": "two mirrored replicas, one micro-batch alive: the least memory",
    "gems-basic": "the same without overlap",
    "chimera": "two mirrored replicas at the same time",
    "pipedream": "1F1B without a flush: every step updates, weights are stashed",
    "2bw": "1F1B without a flush and two versions of the weights",
}


def names() -> list[dict[str, str]]:
    return [{"name": name, "what": WHAT[name]} for name in NAMES]


def describe(schedule: Schedule, name: str, backward: int = 1) -> dict[str, Any]:
    """What a schedule does: its picture, the idle share, and what is alive at most on each worker."""
    result: dict[str, Any] = {
        "name": name,
        "stages": schedule.stages,
        "workers": len(schedule.rows),
        "microbatches": schedule.microbatches,
        "picture": rows(schedule),
        "waits": wait_lines(schedule),
        "bubble": float(bubble(schedule, backward=backward)),
        "alive": alive(schedule),
    }
    if name in ASYNCHRONOUS:
        each = 1 if name == "pipedream" else max(1, min(schedule.stages, schedule.microbatches))
        if schedule.microbatches % each == 0:
            result["versions"] = stashed(schedule, each, ASYNCHRONOUS[name])
    return result


def show_names(rows: Sequence[Mapping[str, str]]) -> None:
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:{width}}  {row['what']}")
    print("raddle schedule NAME --stages 4 --microbatches 8 draws one")


def show_schedule(result: Mapping[str, Any]) -> None:
    for worker, row in enumerate(result["picture"]):
        print(f"{worker:3}  {row}")
    for line in result["waits"]:
        print(line)
    print(f"# idle {100 * result['bubble']:.1f} % of the time; alive at most, by worker:", end=" ")
    print(*result["alive"], sep=", ")
    if "versions" in result:
        print("# versions of weights, by worker:", ", ".join(map(str, result["versions"])))
