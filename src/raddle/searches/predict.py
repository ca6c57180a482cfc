"""Predicts the metrics of a plan, such as step time and peak memory, by simulating a few training steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.pipelining import is_threaded, steps_to_simulate, without_pipeline
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.program import Gather, Move, Reduce
from raddle.searches.baselines.data import data
from raddle.simulation.memory.check_memory import fits
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import Timeline, simulate

STEPS = 3  # steps to simulate; the last one is taken as the steady state
# Keys of the metrics that reports and tables show. speedup: over data parallelism. comm_bytes: sent between
# devices per step. peak_bytes: of the device with the most. imbalance: the longest compute time of a
# device, divided by the mean. search_s: seconds of the search. fits: whether the peaks fit the memory.
METRICS = (
    "step_ms", "samples_per_s", "speedup", "comm_bytes", "peak_bytes", "imbalance", "search_s", "fits"
)  # fmt: skip


def simulate_steps(
    graph: Graph,
    plan: Plan,
    cluster: Cluster,
    profile: Profile | None = None,
    look: Callable[[], None] = lambda: None,
) -> Timeline:
    """Returns the simulated timeline of a few steps of a plan.

    profile: measured times of operators; other operators are estimated from FLOPs and bytes.
    look: is called again and again, so that a search can look at its clock (stopwatch.py).
    """
    steps = steps_to_simulate(plan, STEPS)  # more than STEPS if steps overlap
    return simulate(
        lower(graph, replace(plan, steps=steps), look=look), cluster, profile, look=look
    )


def predicted_metrics(timeline: Timeline) -> dict[str, Any]:
    """Returns the metrics of a simulated plan. `speedup` and `search_s` are None: the caller knows them."""
    plan, seconds = timeline.program.plan, timeline.step_seconds
    peaks = peak_bytes(timeline)
    return {
        "method": plan.method,
        "step_ms": 1e3 * seconds,
        "samples_per_s": plan.batch / seconds,
        "speedup": None,
        "comm_bytes": timeline.comm_bytes,
        "peak_bytes": max(peaks),
        "imbalance": timeline.imbalance,
        "search_s": None,
        "fits": fits(peaks, timeline.cluster),
        "bn": plan.bn,
        "sync": plan.sync,
        "precision": plan.precision,
        "optimizer": plan.optimizer,
        "schedule": plan.schedule.splitlines()[0] if plan.schedule else "",
        "stages": len(plan.stages) or 1,
        "microbatches": plan.microbatches,
    }


def simulate_data_parallel(
    graph: Graph, plan: Plan, cluster: Cluster, profile: Profile | None = None
) -> Timeline | None:
    """Returns the simulated timeline of data parallelism with a plan's batch, sync kind and other options.

    If the plan has stages, their micro-batches and recomputation are left out. None if the plan itself is
    data parallel. Raises InputError if there are fewer samples than devices.
    """
    if is_threaded(plan):  # the schedule threaded:N runs N steps at once
        plan = replace(plan, schedule="")
    if plan.stages and plan.batch:
        graph = graph.for_batch(plan.batch)
        plan = replace(without_pipeline(plan), microbatches=1, recompute=(), split_backward=False)
        # The plan's fingerprint identified the graph of one micro-batch.
        plan = replace(plan, fingerprint="")
    data_tiles = data(graph, cluster)
    if data_tiles == dict(plan.tiles):
        return None
    return simulate_steps(
        graph, replace(plan, tiles=data_tiles, sums={}, method="data"), cluster, profile
    )


def details(timeline: Timeline, *, largest: int = 10) -> dict[str, Any]:
    """Returns a plan's metrics, how each device spends an average step, and the largest transfers.

    largest: number of transfers that are listed, those with the most bytes.
    """
    plan, cluster = timeline.program.plan, timeline.cluster
    peaks = peak_bytes(timeline)
    unset = ("speedup", "search_s")  # keys that predicted_metrics leaves None
    return {
        "model": plan.model,
        "batch": plan.batch,
        "cluster": cluster.name,
        **{key: value for key, value in predicted_metrics(timeline).items() if key not in unset},
        "devices": [
            {
                "device": d,
                "kind": cluster.devices[d].kind,
                **{f"{name}_ms": 1e3 * seconds for name, seconds in seconds_by_use.items()},
                "peak_bytes": peaks[d],
            }
            # seconds_by_use: seconds of compute, exposed communication, idle
            for d, seconds_by_use in enumerate(timeline.breakdown())
        ],
        "transfers": _transfers(timeline)[:largest],
    }


def _transfers(timeline: Timeline) -> list[dict[str, Any]]:
    """Returns a row for each transfer between devices in the last simulated step, most bytes first.

    A Move sends boxes of a value; a Reduce sums gradients, a Gather gathers sharded parameters.
    """
    # tasks.instruction: for each task, the number of the instruction that it is a part of
    tasks, rows = timeline.tasks, []
    # By instruction: bytes, and nanoseconds of its first start and last end.
    nbytes = np.bincount(tasks.instruction, weights=tasks.nbytes)
    begin, end = np.full(len(nbytes), np.iinfo(np.int64).max), np.zeros(len(nbytes), np.int64)
    np.minimum.at(begin, tasks.instruction, timeline.start)
    np.maximum.at(end, tasks.instruction, timeline.end)
    for number, instruction in enumerate(timeline.program.instructions):
        if instruction.key.step < timeline.program.plan.steps - 1:
            continue
        if isinstance(instruction, Move):
            name, pattern = instruction.value, instruction.collective
            what = str(instruction.kind)
        elif isinstance(instruction, Reduce | Gather):
            name = ", ".join(instruction.parameters)
            what, pattern = "synchronise", str(instruction.collective)
        else:
            continue
        rows.append(
            {
                "value": name,
                "what": what,
                "pattern": pattern or "messages",
                "devices": list(instruction.devices),
                "bytes": int(nbytes[number]),
                "ms": int(end[number] - begin[number]) / 1e6,
            }
        )
    return sorted(rows, key=lambda row: -row["bytes"])
