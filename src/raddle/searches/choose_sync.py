"""Which way to synchronise parameters: P3 where it pays, else all-reduce, in the buckets that pay.

P3's slices travel through the host, so it is for devices on nodes of their own. Without homes
(`p3:collective`) they are all-reduced as buckets are, and go with all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raddle.clusters import Cluster
from raddle.costs.host_overhead import has_host_overhead
from raddle.plans.pipelining import is_asynchronous
from raddle.plans.plan import Plan
from raddle.plans.sync.servers import DEFAULT_SLICE
from raddle.program.program import Move, Reduce
from raddle.simulation.timeline import Timeline

SMALLER_BUCKETS = (
    2 * 2**20,
    2**20 // 2,
)  # bytes: smaller ones leave earlier, and each costs a latency
MARGIN = 0.05  # predictions are not better than that
MESSAGE_SECONDS = (
    4e-4  # seconds of a core for each end of a message with a slice, as measured in bench/sync
)

# Seconds of a core for a slice's sum where the cluster says nothing of it: 13 µs to issue it and 50 µs to
# update the slice were measured; the rest is allowed for cutting the backward there.
SUM_SECONDS = 1e-4


def with_fastest_sync(
    plan: Plan,
    cluster: Cluster,
    step_seconds: Callable[[Plan], float],
    with_order: Callable[[Plan], Plan] = lambda plan: plan,
) -> Plan:
    """The plan, or the same with what is faster; `step(plan)` gives the seconds of a step.

    `ordered` gives a plan the order of its sums. What is another way has to pay by MARGIN.
    """
    if is_asynchronous(plan) or len(cluster.devices) == 1:
        return plan
    nodes = {device.node for device in cluster.devices}
    one_device_per_node = 1 < len(nodes) == len(cluster.devices)
    fastest = (
        _with_buckets_or_p3(plan, step_seconds)
        if one_device_per_node
        else (step_seconds(plan), plan)
    )
    collective = with_order(replace(plan, sync="p3:collective"))
    return collective if step_seconds(collective) < (1 - MARGIN) * fastest[0] else fastest[1]


def _with_buckets_or_p3(plan: Plan, step_seconds: Callable[[Plan], float]) -> tuple[float, Plan]:
    """Buckets of some sizes, and P3 between nodes; seconds, and the plan."""
    seconds = {
        bucket: step_seconds(replace(plan, bucket=bucket))
        for bucket in (plan.bucket, *SMALLER_BUCKETS)
    }
    best = min(seconds, key=seconds.__getitem__)
    if seconds[best] > (1 - MARGIN) * seconds[plan.bucket]:
        best = plan.bucket
    p3 = replace(plan, sync="p3")
    p3_seconds = step_seconds(p3)
    if p3_seconds < (1 - MARGIN) * seconds[best]:
        return p3_seconds, p3
    return seconds[best], replace(plan, bucket=best)


def host_seconds(timeline: Timeline) -> float:
    """What small messages and sums of slices cost a device's host, where the cluster says nothing of it.

    Large messages take longer on their link.
    """
    program = timeline.program
    if not program.slices or has_host_overhead(timeline.cluster):
        return 0.0
    if program.plan.parsed_sync.collective:
        sums = sum(len(i.devices) for i in program.instructions if isinstance(i, Reduce))
        return SUM_SECONDS * sums / program.plan.devices / program.plan.steps
    moves = (i for i in program.instructions if isinstance(i, Move) and i.kind.is_of_parameter)
    ends = 2 * sum(m.elements < DEFAULT_SLICE // 2 for move in moves for m in move.messages)
    return MESSAGE_SECONDS * ends / program.plan.devices / program.plan.steps
