"""Computes the seconds of all tiles of an operator at once, bitwise equal to ComputeCosts.seconds.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).
"""

from __future__ import annotations

import numpy as np

from raddle.clusters import Device
from raddle.costs.compute import ComputeCosts, roofline, speed
from raddle.graph.graph import Op
from raddle.graph.ops import OPERATOR_KINDS
from raddle.plans.tiling import Tiling
from raddle.simulation.fast.regions import Regions, tile_boxes_in

Array = np.ndarray


def tile_seconds(
    costs: ComputeCosts,
    op: Op,
    tiling: Tiling,
    regions: tuple[Regions, ...],
    phase: str,
    device: Device,
) -> Array:
    """Returns by tile its seconds in a phase on a device. A tile of a grid stands for all of its copies.

    regions: by operand, the regions that the tiles read. phase: "F" or "B".
    """
    # Numbers of the operands whose gradients the phase computes; None: the phase is forward.
    grad_operands = costs.grad_operands.get((op.name, phase))
    # Measured times, and kinds of operators with their own count of FLOPs, are looked up tile by tile.
    if costs.profile is not None or OPERATOR_KINDS[op.kind].flops is not None:
        return np.array([costs.seconds(op, box, phase, device) for box in tiling.boxes])
    # Points of the iteration space, by tile; below: elements of each output and input, by tile.
    points = _volumes(tile_boxes_in(tiling, range(len(op.space.dims))))
    outputs = [_volumes(tile_boxes_in(tiling, dims)) for dims in op.space.outputs]
    inputs = [r.volumes for r in regions]
    total = np.zeros(len(points))
    for operand in [None] if grad_operands is None else grad_operands:
        # A product multiplies and adds at each point.
        flops = (2 if op.space.is_product else op.space.flops_per_point) * points
        read = list(inputs)
        # The gradient of a bias, which only one tile adds: only its elements count.
        if operand is not None and op.space.operands[operand].added_once:
            flops = np.zeros_like(points)
            read = [np.zeros_like(points) for _ in inputs]
            read[operand] = inputs[operand]
        elements = [*read, *outputs]
        device_speed = speed(costs.graph, op, device)  # FLOPs and bytes per second, and overhead
        total = total + roofline(
            costs.graph, op, flops, elements, device_speed, np.maximum, operand=operand
        )
    return total


def _volumes(boxes: Array) -> Array:
    """Returns by tile the number of elements of its box; boxes: [tile, dimension, (from, to)]."""
    return np.asarray((boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1))
