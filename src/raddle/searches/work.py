"""How long operators take when they are not split: what methods balance."""

from __future__ import annotations

from collections.abc import Callable

from raddle.clusters import Device
from raddle.costs.compute import Compute
from raddle.graph.gradients import active_values as active_values
from raddle.graph.gradients import has_backward
from raddle.graph.graph import Graph, Op


def whole_seconds(graph: Graph) -> Callable[[Op, Device], float]:
    """Seconds of an operator on a device, forward and backward."""
    active = active_values(graph)
    compute = Compute(graph, active)

    def seconds(op: Op, device: Device) -> float:
        phases = "FB" if has_backward(op, active) else "F"
        return sum(compute.seconds(op, op.space.full, phase, device) for phase in phases)

    return seconds
