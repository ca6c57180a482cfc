"""Explains the predicted time of a plan, for `raddle explain` and the HTML report.

It compares the plan with data parallelism (same settings, other tiles) and with a lower bound for all
plans, and shows the critical path of the simulated step.
"""

# Times of the simulator's tasks are in nanoseconds.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.pipelining import (
    schedule_of,
    workers_of,
)
from raddle.plans.plan import Plan
from raddle.plans.schedule import bubble, draw_schedule, peak_alive
from raddle.plans.schedules import ASYNCHRONOUS, peak_versions
from raddle.plans.value_dtypes import in_precision
from raddle.program.communicators import communicators, most_on_a_device
from raddle.program.message_kind import Purpose
from raddle.program.program import Gather, Instruction, Merge, Move, Reduce, Run
from raddle.searches.bounds import lower_bound, why_unbounded
from raddle.searches.predict import details, simulate_data_parallel, simulate_steps
from raddle.searches.purposes import bytes_by_purpose
from raddle.simulation.timeline import Timeline

MAX_PATH_ENTRIES = 5  # entries of the critical path in the explanation


def explain_plan(
    graph: Graph, plan: Plan, cluster: Cluster, profile: Profile | None = None
) -> dict[str, Any]:
    """Simulate a plan and return where the time of a step goes; see `explain_timeline`."""
    timeline = simulate_steps(graph, plan, devices_of_plan(plan, cluster), profile)
    return explain_timeline(plan, timeline, profile)


def explain_timeline(
    plan: Plan, timeline: Timeline, profile: Profile | None = None, data: Timeline | None = None
) -> dict[str, Any]:
    """Return the explanation of a plan that was simulated already.

    timeline: the simulation of the plan; data: a simulation of data parallelism, if there is one.
    Keys of the result: `plan` and `data` are the predicted metrics (searches/predict.py) of the plan and of
    data parallelism, `bound` is the lower bound, `gap_ms` the step time above it, `path` the longest
    entries of the critical path, `path_doing` its milliseconds by activity, `search` what the plan file
    says about the search. An `..._error` says why a value is None.
    """
    graph, cluster = timeline.program.graph, timeline.cluster
    metrics = _plan_metrics(timeline)
    if data is not None and _same_settings(data.program.plan, plan):
        same = dict(data.program.plan.tiles) == dict(plan.tiles)
        baseline: dict[str, Any] | None = {**_plan_metrics(data), "same": same}
        baseline_error = None
    else:
        baseline, baseline_error = _data_parallel_metrics(graph, plan, cluster, profile, metrics)
    bound, bound_error = _bound(graph, plan, cluster, profile)
    return {
        **heading(plan, cluster),
        "plan": metrics,
        "data": baseline,
        "data_error": baseline_error,
        "speedup": baseline["step_ms"] / metrics["step_ms"] if baseline else None,
        "bound": bound,
        "bound_error": bound_error,
        "gap_ms": metrics["step_ms"] - bound["ms"] if bound else None,
        **_critical_path(timeline),
        "search": _search_record(plan, cluster),
    }


def _same_settings(one: Plan, other: Plan) -> bool:
    """Whether two plans have the same settings; their tiles may differ."""
    settings = (
        "devices", "bn", "sync", "bucket", "microbatches", "recompute", "split_backward", "precision",
        "optimizer", "schedule",
    )  # fmt: skip
    return all(getattr(one, name) == getattr(other, name) for name in settings)


def heading(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Return the settings of a plan, the first part of every explanation."""
    return {
        "model": plan.model,
        "batch": plan.batch,
        "method": plan.method,
        "cluster": cluster.name,
        "devices": plan.devices,
        "bn": plan.bn,
        "sync": plan.sync,
        "microbatches": plan.microbatches,
        "recompute": len(plan.recompute),
        "split_backward": plan.split_backward,
        "schedule": describe_schedule(plan),
    }


def describe_schedule(plan: Plan) -> dict[str, Any] | None:
    """Return a description of the schedule of a pipeline; None if the plan has none.

    `alive`: the most micro-batches in flight on each worker; `bubble`: the idle share of the workers' time;
    `picture`: a row of actions for each worker, of two steps; `versions`: the most versions of the weights
    on each worker, for asynchronous schedules.
    """
    if not plan.stages:
        return {"name": plan.schedule} if plan.schedule else None
    count = plan.microbatches
    # Without a flush steps overlap, and it takes some steps until all stages are busy.
    schedule = schedule_of(replace(plan, steps=4 * len(plan.stages)))
    description: dict[str, Any] = {
        "name": plan.schedule.splitlines()[0] if plan.schedule else "sequential",
        "stages": len(plan.stages),
        "workers": [list(devices) for devices in workers_of(plan)],
        "alive": peak_alive(schedule),
        # It is assumed that a backward takes as long as two forwards.
        "bubble": float(bubble(schedule, backward=2)),
        "picture": draw_schedule(schedule_of(replace(plan, steps=2))),
    }
    if plan.schedule in ASYNCHRONOUS:
        description["versions"] = peak_versions(schedule, count, ASYNCHRONOUS[plan.schedule])
    return description


def devices_of_plan(plan: Plan, cluster: Cluster) -> Cluster:
    """Return the part of the cluster that a plan uses: its first devices."""
    if plan.devices > len(cluster.devices):
        raise InputError(
            f"the plan needs {plan.devices} devices, '{cluster.name}' has {len(cluster.devices)}."
        )
    return cluster.first_devices(plan.devices)


def _plan_metrics(timeline: Timeline) -> dict[str, Any]:
    """Return the predicted metrics of a simulated plan, the average over devices, and the bytes sent.

    `fullest`: the device with the largest share of its memory in use. `communicators`: the most that a
    device takes part in; each takes seconds and memory to make before the first step.
    """
    prediction = details(timeline, largest=0)  # 0: without a list of the largest transfers
    rows, devices = prediction["devices"], timeline.cluster.devices
    fullest = max(rows, key=lambda row: row["peak_bytes"] / devices[row["device"]].memory)
    keys = ("step_ms", "samples_per_s", "comm_bytes", "peak_bytes", "imbalance", "fits")
    return {
        **{key: prediction[key] for key in keys},
        "average": average(timeline.breakdown()),
        "bytes": bytes_by_purpose(timeline.program),
        "communicators": most_on_a_device(communicators(timeline.program)),
        "fullest": {
            "device": fullest["device"],
            "peak_bytes": fullest["peak_bytes"],
            "memory_bytes": devices[fullest["device"]].memory,
        },
    }


def average(breakdown: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the average over devices, in milliseconds, of computing, waiting for data and being idle.

    breakdown: seconds by activity, for each device.
    """
    return {
        f"{name}_ms": 1e3 * math.fsum(shares[name] for shares in breakdown) / len(breakdown)
        for name in breakdown[0]
    }


def _data_parallel_metrics(
    graph: Graph, plan: Plan, cluster: Cluster, profile: Profile | None, metrics: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None]:
    """Simulate data parallelism with the settings of the plan; return its metrics or, if impossible, why.

    metrics: those of the plan, which are returned if the plan is data parallelism itself (`same`).
    """
    try:
        timeline = simulate_data_parallel(graph, plan, cluster, profile)
    except InputError as error:
        return None, str(error)
    if timeline is None:
        return {**metrics, "same": True}, None
    return {**_plan_metrics(timeline), "same": False}, None


def _bound(
    graph: Graph, plan: Plan, cluster: Cluster, profile: Profile | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the lower bound of the step time of all plans or, if there is none, why.

    `binding` names the part that determines the bound.
    """
    if reason := why_unbounded(plan, profile):
        return None, reason
    if plan.microbatches > 1:
        return None, f"with {plan.microbatches} micro-batches there is no lower bound"
    bound = lower_bound(
        in_precision(graph, plan.parsed_precision), cluster, optimizer=plan.optimizer
    )
    # A plan uses one device alone or sends a message. So the bound is the largest of `work`, `path` and the
    # smaller of `message` and `alone`.
    parts = {
        "work": bound.work,  # all work, divided evenly
        "path": bound.path,  # overheads of the longest chain of operators (not the critical path)
        "message": bound.message,  # latency of one message
        "alone": bound.one_device,  # all work on the fastest device
    }
    binding = next(name for name in parts if parts[name] == bound.seconds)
    return {
        "ms": 1e3 * bound.seconds,
        **{f"{name}_ms": 1e3 * seconds for name, seconds in parts.items()},
        "binding": binding,
    }, None


def _critical_path(timeline: Timeline) -> dict[str, Any]:
    """Return the time of the critical path by activity, and its longest entries, per step.

    The critical path has no gaps, so its times add up to the whole simulation. An entry sums all tasks of
    the same operator or parameter with the same activity.
    """
    by_subject: Counter[tuple[str, str]] = Counter()
    by_activity: Counter[str] = Counter()
    program = timeline.program
    path = timeline.critical_path()
    for task, ns in zip(path, timeline.critical_nanoseconds(path).tolist(), strict=True):
        # tasks.instruction: by task, the number of the instruction that it belongs to
        instruction = program.instructions[int(timeline.tasks.instruction[task])]
        subject = _subject_and_activity(instruction)
        by_subject[subject] += ns
        by_activity[subject[1]] += ns
    # ns_divisor: divides nanoseconds of all steps, which gives milliseconds per step.
    total, ns_divisor = sum(by_subject.values()), 1e6 * program.plan.steps
    return {
        "path_ms": total / ns_divisor,
        "path_doing": {what: ns / ns_divisor for what, ns in by_activity.most_common() if ns},
        "path": [
            {"name": name, "what": what, "ms": ns / ns_divisor, "share": ns / total}
            for (name, what), ns in by_subject.most_common(MAX_PATH_ENTRIES)
        ],
    }


def _subject_and_activity(instruction: Instruction) -> tuple[str, str]:
    """Return the operator, value or parameter of an instruction, and what the instruction does.

    Forward and backward of an operator are the same activity.
    """
    if isinstance(instruction, Run):
        return instruction.op, "computing"
    if isinstance(instruction, Merge):
        return instruction.op, "merging"
    if isinstance(instruction, Move):
        purpose = instruction.kind.purpose
        what = "synchronising" if purpose == Purpose.PARAMETERS else f"sending {purpose.value}"
        return instruction.value, what
    if isinstance(instruction, Reduce | Gather):
        return ", ".join(instruction.parameters), "synchronising"
    return instruction.parameter, "updating"


# -- how the search found the plan -----------------------------------------------------------------


def _search_record(plan: Plan, cluster: Cluster) -> dict[str, Any] | None:
    """Return what a search wrote into the plan file, or None if no search did.

    A candidate is a whole plan that the search *timed* (it predicted the time of a single step) or
    *simulated* (several steps, with their memory). `start`: the name of the candidate that led to the plan;
    `stopped`: why the search ended; `proposals`: how many moves its Markov chains proposed; `tried`: the
    candidates; `searched_as`: how their settings differ from those of the plan, such as "sync allreduce in
    place of p3". A user may have edited the file, so entries of other types than a search writes are left
    out.
    """
    predicted = plan.predicted
    start, stopped = predicted.get("start"), predicted.get("stopped")
    if not isinstance(stopped, str) or not isinstance(start, str):
        return None
    best, proposals = predicted.get("step_ms"), predicted.get("proposals")
    tried, searched_as = predicted.get("tried"), predicted.get("searched_as")
    rows = [row for row in tried if _is_candidate(row)] if isinstance(tried, list) else []
    memory = [device.memory for device in cluster.devices]
    return {
        "start": start,
        "stopped": stopped,
        "proposals": proposals if type(proposals) is int else None,
        "memory_bytes": [min(memory), max(memory)],
        "searched_as": searched_as if isinstance(searched_as, str) else None,
        "tried": [_candidate_row(row, start, best) for row in rows],
    }


def _is_candidate(row: Any) -> bool:
    """Whether an entry of `tried` has at least a name and a time."""
    return (
        isinstance(row, dict) and isinstance(row.get("name"), str) and _is_time(row.get("step_ms"))
    )


def _is_time(ms: Any) -> bool:
    """Whether a value is a finite number above 0."""
    return type(ms) in (int, float) and math.isfinite(ms) and ms > 0


def _candidate_row(row: Mapping[str, Any], start: str, best: Any) -> dict[str, Any]:
    """Return a candidate of the search with its relative difference from the plan's predicted step.

    start: name of the candidate that became the plan (`taken`); best: predicted milliseconds of the plan.
    `step_ms` of a candidate that was timed and not simulated is the time of a single step.
    """
    peak = row.get("peak_bytes")
    return {
        "name": row["name"],
        "taken": row["name"] == start,
        "step_ms": row["step_ms"],
        "difference": row["step_ms"] / best - 1 if _is_time(best) else None,
        "simulated": row.get("simulated") is True,
        "fits": row["fits"] if type(row.get("fits")) is bool else None,
        "peak_bytes": peak if type(peak) is int else None,
    }
