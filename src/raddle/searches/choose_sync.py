"""Chooses the sync kind of a plan by simulation: P3 if it is faster, else all-reduce with the best buckets.

P3 (`p3`: Priority-based Parameter Propagation, arXiv 1905.03960) sends slices of gradients to servers
through the host's memory. P3 and smaller buckets are tried only if every device has a node of its own.
`p3:collective` all-reduces the slices instead of sending them to servers; it is always tried. HSDP
(`sharded,group=N`), with the devices of a node as a group, is tried if several nodes have N devices each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raddle.clusters import Cluster
from raddle.costs.host_overhead import has_host_overhead
from raddle.errors import InputError, OutOfTime
from raddle.plans.pipelining import is_asynchronous
from raddle.plans.plan import Plan
from raddle.plans.sync.servers import DEFAULT_SLICE
from raddle.program.program import Move, Reduce
from raddle.searches.nodes import devices_per_node
from raddle.simulation.timeline import Timeline

# Sizes of buckets in bytes: 2 MiB, 512 KiB. All-reduces of small buckets start earlier, but each costs a
# latency.
SMALLER_BUCKETS = (2 * 2**20, 2**20 // 2)
# A change must save at least this fraction of the step time: predictions are not more precise.
MARGIN = 0.05
# CPU seconds to send or to receive a message with a slice, measured in bench/sync.
MESSAGE_SECONDS = 4e-4

# CPU seconds of a device for the all-reduce of a slice, if the cluster has no host overhead. 13 µs to issue
# it and 50 µs to update the slice were measured; the remainder is for the backward, which is interrupted at
# each slice.
SLICE_ALL_REDUCE_SECONDS = 1e-4


def with_fastest_sync(
    plan: Plan,
    cluster: Cluster,
    step_seconds: Callable[[Plan], float],
    with_order: Callable[[Plan], Plan] = lambda plan: plan,
) -> Plan:
    """Returns the plan with the fastest sync kind and bucket size; a change must be faster by MARGIN.

    step_seconds: predicts the seconds of a step of a plan. with_order: adds the order of its slices to a
    `p3:collective` plan. If either raises OutOfTime, the fastest so far is returned.
    """
    if is_asynchronous(plan) or len(cluster.devices) == 1:
        return plan
    nodes = {device.node for device in cluster.devices}
    one_device_per_node = 1 < len(nodes) == len(cluster.devices)
    fastest = plan
    try:
        fastest_seconds, fastest = (
            _with_buckets_or_p3(plan, step_seconds)
            if one_device_per_node
            else (step_seconds(plan), plan)
        )
        candidates = [replace(plan, sync="p3:collective")]
        if group_size := devices_per_node(cluster):
            candidates.append(replace(plan, sync=f"sharded,group={group_size}"))
        for candidate in candidates:
            try:
                if candidate.parsed_sync.collective:
                    candidate = with_order(candidate)
                seconds = step_seconds(candidate)
            except InputError:
                if not candidate.parsed_sync.group_size:
                    raise
                continue  # the plan's tiles do not allow such groups
            if seconds < (1 - MARGIN) * fastest_seconds:
                fastest_seconds, fastest = seconds, candidate
    except OutOfTime:
        pass
    return fastest


def _with_buckets_or_p3(plan: Plan, step_seconds: Callable[[Plan], float]) -> tuple[float, Plan]:
    """Returns the step seconds and the plan of the best of several bucket sizes and P3."""
    seconds = {  # bucket size in bytes -> seconds of a step
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
    """Returns the CPU seconds of a device in a step for messages and all-reduces of slices.

    planning.py adds them to the simulated step. They are an average over the devices, and 0 if the cluster
    has host overheads: the simulation then counts this time itself. Only messages of less than half a slice
    count: a larger message takes longer on its link than on the CPU.
    """
    program = timeline.program
    # slices: by parameter; empty if the sync kind does not cut gradients into slices
    if not program.slices or has_host_overhead(timeline.cluster):
        return 0.0
    if program.plan.parsed_sync.collective:  # p3:collective
        # Each device has a part in each of its all-reduces.
        all_reduce_parts = sum(
            len(i.devices) for i in program.instructions if isinstance(i, Reduce)
        )
        return (
            SLICE_ALL_REDUCE_SECONDS * all_reduce_parts / program.plan.devices / program.plan.steps
        )
    # A Move is an instruction that sends messages. is_of_parameter: the messages go between the holders of
    # a parameter and its server.
    moves = (i for i in program.instructions if isinstance(i, Move) and i.kind.is_of_parameter)
    # DEFAULT_SLICE: elements of a slice
    small = sum(m.elements < DEFAULT_SLICE // 2 for move in moves for m in move.messages)
    # Factor 2: one device sends the message, another one receives it.
    return MESSAGE_SECONDS * 2 * small / program.plan.devices / program.plan.steps
