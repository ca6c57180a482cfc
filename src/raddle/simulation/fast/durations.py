"""Seconds of all tiles of an operator at once: to the last bit what `Compute.seconds` says of each."""

# t: tile

from __future__ import annotations

import numpy as np

from raddle.clusters import Device
from raddle.costs.compute import ComputeCosts, roofline, speed
from raddle.graph.graph import Op
from raddle.graph.ops import OPERATOR_KINDS
from raddle.plans.tiling import Tiling
from raddle.simulation.fast.regions import Regions, boxes_of

Array = np.ndarray


def tile_seconds(
    compute: ComputeCosts,
    op: Op,
    tiling: Tiling,
    regions: tuple[Regions, ...],
    phase: str,
    device: Device,
) -> Array:
    """By tile (of a grid without copies), its seconds on a device of one kind."""
    wanted = compute.grad_operands.get((op.name, phase))
    if compute.profile is not None or OPERATOR_KINDS[op.kind].flops is not None:
        return np.array([compute.seconds(op, box, phase, device) for box in tiling.boxes])
    points = _volumes(boxes_of(tiling, range(len(op.space.dims))))
    outputs = [_volumes(boxes_of(tiling, dims)) for dims in op.space.outputs]
    inputs = [r.volumes for r in regions]
    total = np.zeros(len(points))
    for operand in [None] if wanted is None else wanted:
        flops = (2 if op.space.is_product else op.space.flops_per_point) * points
        read = list(inputs)
        if operand is not None and op.space.operands[operand].added_once:
            flops = np.zeros_like(points)
            read = [np.zeros_like(points) for _ in inputs]
            read[operand] = inputs[operand]
        elements = [*read, *outputs]
        at = speed(op, device)
        total = total + roofline(compute.graph, op, flops, elements, at, np.maximum)
    return total


def _volumes(boxes: Array) -> Array:
    return np.asarray((boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1))
