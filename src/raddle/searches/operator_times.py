"""Estimates the seconds of whole operators, not split. Methods balance work between devices by them."""

from __future__ import annotations

from collections.abc import Callable

from raddle.clusters import Cluster, Device
from raddle.costs.compute import ComputeCosts
from raddle.graph.gradients import active_values as active_values
from raddle.graph.gradients import has_backward
from raddle.graph.graph import Graph, Op


def whole_operator_seconds(graph: Graph) -> Callable[[Op, Device], float]:
    """Returns a function that gives the seconds of a whole operator on a device, forward and backward."""
    active = active_values(graph)  # names of the values that need a gradient
    compute = ComputeCosts(graph, active)

    def seconds(op: Op, device: Device) -> float:
        # F: forward, B: backward
        phases = "FB" if has_backward(op, active) else "F"
        return sum(compute.seconds(op, op.space.full, phase, device) for phase in phases)

    return seconds


def device_speeds(graph: Graph, cluster: Cluster) -> tuple[float, ...]:
    """Returns for each device how many times per second it could compute the whole graph."""
    seconds = whole_operator_seconds(graph)
    kinds = {device.kind: device for device in cluster.devices}
    speed = {
        kind: 1 / sum(seconds(op, first_of_kind) for op in graph.ops)
        for kind, first_of_kind in kinds.items()
    }
    return tuple(speed[device.kind] for device in cluster.devices)
