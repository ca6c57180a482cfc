"""How long operators take when they are not split: what methods balance."""

from __future__ import annotations

from collections.abc import Callable

from raddle.clusters import Device
from raddle.costs.compute import Compute
from raddle.graph.graph import Graph, Op
from raddle.program.lower import active_values as active_values


def whole_seconds(graph: Graph) -> Callable[[Op, Device], float]:
    """Seconds of an operator on a device, forward and backward."""
    active = frozenset(active_values(graph))
    compute = Compute(graph, active)

    def seconds(op: Op, device: Device) -> float:
        phases = "FB" if any(o in active for o in op.outputs) else "F"
        return sum(compute.seconds(op, op.space.full, phase, device) for phase in phases)

    return seconds
