"""Which way to synchronise parameters: P3 where it pays, else all-reduce, in the buckets that pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raddle.clusters import Cluster
from raddle.costs.handling import handles
from raddle.plan.pipelining import is_asynchronous
from raddle.plan.plan import Plan
from raddle.plan.syncing import SLICE
from raddle.program.describe import OF_PARAMETERS
from raddle.program.program import Move
from raddle.simulation.timeline import Timeline

BUCKETS = (2 * 2**20, 2**20 // 2)  # bytes: smaller ones leave earlier, and each costs a latency
MARGIN = 0.05  # predictions are not better than that
MESSAGE = (
    4e-4  # seconds of a core for each end of a message with a slice, as measured in bench/sync
)


def with_sync(plan: Plan, cluster: Cluster, step: Callable[[Plan], float]) -> Plan:
    """The plan, or the same with what is faster; `step(plan)` gives the seconds of a step.

    Slices travel through the host, so P3 is for devices on nodes of their own: inside of a node they
    have better ways.
    """
    nodes = {device.node for device in cluster.devices}
    apart = 1 < len(nodes) == len(cluster.devices)
    if not apart or is_asynchronous(plan):
        return plan
    seconds = {bucket: step(replace(plan, bucket=bucket)) for bucket in (plan.bucket, *BUCKETS)}
    best = min(seconds, key=seconds.__getitem__)
    if seconds[best] > (1 - MARGIN) * seconds[plan.bucket]:
        best = plan.bucket
    urgent = replace(plan, sync="p3")
    if step(urgent) < (1 - MARGIN) * seconds[best]:
        return urgent
    return replace(plan, bucket=best)


def host_seconds(timeline: Timeline) -> float:
    """What small messages cost a device's host in a step, where the cluster says nothing of it.

    Large ones take longer on their link.
    """
    program = timeline.program
    if not program.slices or handles(timeline.cluster):
        return 0.0
    moves = (i for i in program.instructions if isinstance(i, Move) and i.what in OF_PARAMETERS)
    ends = 2 * sum(m.elements < SLICE // 2 for move in moves for m in move.messages)
    return MESSAGE * ends / program.plan.devices / program.plan.steps
