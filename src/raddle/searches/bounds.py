"""A lower bound on the time of a step: no plan on the cluster can be faster, whatever it splits and places.

It holds for steps that follow each other, where operators that depend on no parameter run ahead:

    work      every operation is done somewhere, once at least: total work over the devices' total speed
    path      from a parameter's use to the loss and back to its update operators start one after the other
    message   unless one device does everything, at least one message is sent

The bound holds for roofline costs, where two halves never take less than the whole. Measured times have no
such law, so with a profile there is no bound. Bytes are bounded by one message alone: what must move
depends on placements in ways that no simple count respects (a value may be computed again in place of being
sent).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raddle.clusters import Cluster, Device
from raddle.costs.compute import effective_bandwidth, memory_pass_seconds, roofline, speed
from raddle.costs.profile import Profile
from raddle.graph.gradients import active_values, has_backward, operands_with_gradient
from raddle.graph.graph import Graph, Op
from raddle.graph.ops import work
from raddle.graph.space import Access, Space
from raddle.plans.optimizers import optimizer_info
from raddle.plans.pipelining import is_asynchronous
from raddle.plans.plan import Plan


@dataclass(frozen=True)
class Bound:
    """Seconds of a step that no plan can go below, and of what it is made."""

    work: float
    path: float
    message: float
    one_device: float  # the work on the fastest device: without it a message is sent

    @property
    def seconds(self) -> float:
        return max(self.path, self.work, min(self.message, self.one_device))


def why_unbounded(plan: Plan, profile: Profile | None = None) -> str | None:
    """Why nothing is known of how short the step of a plan like this could be; None where it is."""
    if profile is not None:
        return "with measured operators there is no lower bound"
    if is_asynchronous(plan):
        return "where steps overlap there is no lower bound"
    if plan.split_backward:
        return "with a split backward there is no lower bound"
    return None


def lower_bound(graph: Graph, cluster: Cluster, *, optimizer: str = "sgd") -> Bound:
    """The bound for all devices of a cluster."""
    active = active_values(graph)
    kinds = {device.kind: device for device in cluster.devices}
    seconds_of = {
        kind: _least_seconds(graph, active, device, optimizer) for kind, device in kinds.items()
    }
    totals = {kind: math.fsum(seconds) for kind, seconds in seconds_of.items()}
    # For any weights of devices that add up to one: time >= sum over operators of the least weighted time.
    speed = sum(1 / totals[device.kind] for device in cluster.devices)
    weight = {kind: 1 / total / speed for kind, total in totals.items()}
    least = math.fsum(
        min(weight[kind] * seconds_of[kind][i] for kind in kinds)
        for i in range(len(next(iter(seconds_of.values()))))
    )
    overhead = min(device.overhead for device in kinds.values())
    count = len(cluster.devices)
    # A message holds its link at least as long.
    latencies = [cluster.route(0, d).latency for d in range(1, count)]
    one_device = min(totals.values())
    rounding = 2e-9 * len(graph.ops)  # durations are whole nanoseconds
    return Bound(
        max(0.0, least - rounding),
        max(0.0, _depth(graph, active) * overhead - rounding),
        min(latencies) if latencies else one_device,
        max(0.0, one_device - rounding),
    )


def _least_seconds(
    graph: Graph, active: frozenset[str], device: Device, optimizer: str
) -> list[float]:
    """By operator and parameter, the least that all its tiles together take on one kind of device."""
    seconds = []
    for op in graph.ops:
        parts = [_least_pass_seconds(graph, op, None, device)]
        if has_backward(op, active):
            parts += [
                _least_pass_seconds(graph, op, i, device)
                for i in operands_with_gradient(op, active)
            ]
        seconds.append(math.fsum(parts))
    passes, memory = optimizer_info(optimizer).passes, effective_bandwidth(device)
    for value in graph.parameters:
        if value.name in active:
            seconds.append(memory_pass_seconds(passes * value.nbytes, memory, device.overhead))
    return seconds


def _least_pass_seconds(graph: Graph, op: Op, operand: int | None, device: Device) -> float:
    """The roofline of a whole operator, with no byte counted that some way to split it would not touch."""
    amount = work(op, op.space.full, operand)
    inputs = [_elements_read(op.space, a) for a in op.space.operands]
    elements = [min(e, t) for e, t in zip(amount.elements, inputs, strict=False)]
    elements += amount.elements[len(inputs) :]
    return float(roofline(graph, op, amount.flops, elements, speed(op, device)))


def _elements_read(space: Space, access: Access) -> int:
    """Elements of an operand that are read for certain: tiles of a strided window leave gaps."""
    count = 1
    for index in access.indices:
        if index.plain_dim is not None:
            count *= min(index.extent, space.dims[index.plain_dim].size)
        else:
            count *= (
                1
                if index.table or not index.terms
                else min(index.extent, _least_steps(space, index.terms[0].dim))
            )
    return count


def _least_steps(space: Space, dim: int) -> int:
    return 1 if space.dims[dim].unsplittable else max(1, space.dims[dim].size // 2)


def _depth(graph: Graph, active: frozenset[str]) -> int:
    """The most operators that start one after the other from a parameter to the loss and back to it."""
    if graph.loss is None:  # nothing waits for the step before
        return 0
    forward: dict[str, int] = {}  # by value, operators that start after it until the loss is there
    backward: dict[str, int] = {}  # gradients that are computed before its own
    longest = 0
    for op in reversed(graph.ops):
        if not has_backward(op, active):
            continue
        graded = [op.inputs[i] for i in operands_with_gradient(op, active)]
        ahead = 1 + max(forward.get(o, 0) for o in op.outputs)
        behind = len(graded) + max(backward.get(o, 0) for o in op.outputs)
        for name in graded:
            forward[name] = max(ahead, forward.get(name, 0))
            backward[name] = max(behind, backward.get(name, 0))
            if graph.values[name].role == "parameter":
                longest = max(longest, forward[name] + backward[name])
    return longest
