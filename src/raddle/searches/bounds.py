"""Computes a lower bound on the time of a training step: no plan for the cluster can be faster.

The bound is for the steady state: steps follow each other, and operators that depend on no parameter may
run before the step begins. The bound is the largest of:

    work      every operation runs at least once on some device: total work over the devices' total speed
    path      the longest chain of operators, from a parameter to the loss and back to its gradient,
              times the least overhead to start an operator
    message   if more than one device works, at least one message is sent

The bound needs roofline costs, by which two halves of an operator never take less time than the whole.
Measured times do not guarantee that, so there is no bound with a profile. Communication is bounded by the
latency of one message only: how many bytes must move depends on the plan, and a plan may recompute a value
instead of sending it.
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
    """A lower bound on the seconds of a step, and the parts that it is computed from, in seconds."""

    work: float  # total work over total speed
    path: float  # start-up overhead of the longest chain of operators
    message: float  # latency of one message
    one_device: float  # all work on the fastest device: the only way to send no message

    @property
    def seconds(self) -> float:
        return max(self.path, self.work, min(self.message, self.one_device))


def why_unbounded(plan: Plan, profile: Profile | None = None) -> str | None:
    """Returns why the lower bound does not hold for a plan of this sort; None if it holds."""
    if profile is not None:
        return "with measured operators there is no lower bound"
    if is_asynchronous(plan):
        return "where steps overlap there is no lower bound"
    if plan.split_backward:
        return "with a split backward there is no lower bound"
    return None


def lower_bound(graph: Graph, cluster: Cluster, *, optimizer: str = "sgd") -> Bound:
    """Returns the lower bound for plans that may use all devices of a cluster."""
    active = active_values(graph)  # names of the values that need a gradient
    device_of_kind = {device.kind: device for device in cluster.devices}
    # For each kind of device: the seconds of each operator, then of each parameter's update.
    seconds_of = {
        kind: _least_seconds(graph, active, device, optimizer)
        for kind, device in device_of_kind.items()
    }
    totals = {kind: math.fsum(seconds) for kind, seconds in seconds_of.items()}
    # The bound `work`. For any weights of the devices that sum to one: step time >= the sum over
    # operators of min over devices (weight * seconds on that device). The weights here are in
    # proportion to the devices' speeds; a speed is 1 / (seconds for the whole graph).
    total_speed = sum(1 / totals[device.kind] for device in cluster.devices)
    weight = {kind: 1 / total / total_speed for kind, total in totals.items()}
    work_seconds = math.fsum(
        min(weight[kind] * seconds_of[kind][i] for kind in device_of_kind)
        for i in range(len(next(iter(seconds_of.values()))))
    )
    overhead = min(device.overhead for device in device_of_kind.values())
    device_count = len(cluster.devices)
    # A message takes at least the latency of its route.
    latencies = [cluster.route(0, d).latency for d in range(1, device_count)]
    one_device = min(totals.values())
    rounding = 2e-9 * len(graph.ops)  # the simulator rounds durations to whole nanoseconds
    return Bound(
        max(0.0, work_seconds - rounding),
        max(0.0, _depth(graph, active) * overhead - rounding),
        min(latencies) if latencies else one_device,
        max(0.0, one_device - rounding),
    )


def _least_seconds(
    graph: Graph, active: frozenset[str], device: Device, optimizer: str
) -> list[float]:
    """Returns the least seconds of each operator, then of each parameter's update, on one kind of device.

    An operator's seconds are the sum over all its tiles, forward and backward. active: names of the values
    that need a gradient.
    """
    seconds = []
    for op in graph.ops:
        parts = [_least_pass_seconds(graph, op, None, device)]
        if has_backward(op, active):
            parts += [
                _least_pass_seconds(graph, op, i, device)
                for i in operands_with_gradient(op, active)
            ]
        seconds.append(math.fsum(parts))
    # passes: how often an update reads or writes memory of the parameter's size; memory: bytes/s
    passes, memory = optimizer_info(optimizer).passes, effective_bandwidth(device)
    for value in graph.parameters:
        if value.name in active:
            seconds.append(memory_pass_seconds(passes * value.nbytes, memory, device.overhead))
    return seconds


def _least_pass_seconds(graph: Graph, op: Op, operand: int | None, device: Device) -> float:
    """Returns the roofline seconds of a whole operator, for the fewest bytes that any split of it moves.

    operand: None for the forward; else the number of the operand whose gradient is computed.
    """
    amount = work(op, op.space.full, operand)
    least_read = [_elements_read(op.space, a) for a in op.space.operands]
    # amount.elements: elements read of each operand, then elements written of each output
    elements = [min(n, least) for n, least in zip(amount.elements, least_read, strict=False)]
    elements += amount.elements[len(least_read) :]
    return float(
        roofline(graph, op, amount.flops, elements, speed(graph, op, device), operand=operand)
    )


def _elements_read(space: Space, access: Access) -> int:
    """Returns the least number of elements of an operand that are read.

    A window with a stride may skip elements. access: how the operator indexes the operand.
    """
    count = 1
    # extent: the size of the operand's dimension. terms[0]: the letter that moves the window (h in h*2+R).
    for index in access.indices:  # one for each dimension of the operand
        # plain_dim: the operator's dimension, if the index is that dimension alone, as n and k in x[n k]
        if index.plain_dim is not None:
            count *= min(index.extent, space.dims[index.plain_dim].size)
        else:
            # An index without terms (letters), or with a table of ranges, counts as one element: no index
            # reads fewer, so the bound holds.
            count *= (
                1
                if index.table or not index.terms
                else min(index.extent, _least_steps(space, index.terms[0].dim))
            )
    return count


def _least_steps(space: Space, dim: int) -> int:
    """Returns a lower bound on the elements that a sliding window reads: half the number of its positions.

    dim: the operator's dimension along which the window moves; its size is the number of positions.
    """
    return 1 if space.dims[dim].unsplittable else max(1, space.dims[dim].size // 2)


def _depth(graph: Graph, active: frozenset[str]) -> int:
    """Returns the length of the longest chain from a parameter to the loss and back to its gradient.

    The length counts operators of the forward and gradients of the backward.
    """
    if graph.loss is None:  # without a loss, no step waits for the step before
        return 0
    # value -> number of operators on the longest chain from this value to the loss
    forward: dict[str, int] = {}
    # value -> number of gradients on the longest chain from the loss to the gradient of this value
    backward: dict[str, int] = {}
    longest = 0
    for op in reversed(graph.ops):
        if not has_backward(op, active):
            continue
        with_gradient = [op.inputs[i] for i in operands_with_gradient(op, active)]
        forward_length = 1 + max(forward.get(o, 0) for o in op.outputs)
        backward_length = len(with_gradient) + max(backward.get(o, 0) for o in op.outputs)
        for name in with_gradient:
            forward[name] = max(forward_length, forward.get(name, 0))
            backward[name] = max(backward_length, backward.get(name, 0))
            if graph.values[name].role == "parameter":
                longest = max(longest, forward[name] + backward[name])
    return longest
