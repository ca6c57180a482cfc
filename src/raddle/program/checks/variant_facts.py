"""Facts that the checks of a micro-batch look up: operators, tiles, merges, contributions to gradients.

They are the same for all micro-batches of one variant, and are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping

from raddle.graph.box import Box
from raddle.graph.gradients import (
    gradient_contributors,
    has_backward,
    inputs_with_gradient,
    trained_parameters,
)
from raddle.graph.graph import Graph, Op
from raddle.program.describe import BoxesByDevice
from raddle.program.merges import is_local_statistics
from raddle.program.program import Cell, Program, Variant


class VariantFacts:
    """Facts that hold for every micro-batch of one variant.

    A variant is a graph of one micro-batch size, with its tiles on certain devices; most programs have one
    (program.py). `program.active`: the values whose gradient is needed.

    parameter_boxes: by parameter and device, the boxes that the device holds.
    """

    def __init__(
        self, program: Program, parameter_boxes: Mapping[str, BoxesByDevice], variant: Variant
    ) -> None:
        graph, tiles, active = variant.graph, variant.tiles, program.active
        self.program, self.parameter_boxes, self.variant = program, parameter_boxes, variant
        # By value, the operator that computes it.
        self.producer = {o: op for op in graph.ops for o in op.outputs}
        self.tiles = {op.name: tiles[op.name].tiles for op in graph.ops}
        self.devices = {op.name: set(tiles[op.name].devices) for op in graph.ops}
        # By value, the operators that contribute to its gradient.
        self.contributors = {
            v: [op.name for op in ops] for v, ops in gradient_contributors(graph, active).items()
        }
        # Operators that run forward again before their backward.
        self.recomputed = {name for block in program.plan.recompute for name in block}
        # The cache of `regions_and_outputs`.
        self._regions: dict[tuple[int, Box], tuple[tuple[Box | None, ...], tuple[Box, ...]]] = {}

    @property
    def graph(self) -> Graph:
        return self.variant.graph

    @property
    def ops(self) -> Mapping[str, Op]:
        return self.variant.ops

    @property
    def merges(self) -> Mapping[str, tuple[Cell, ...]]:
        return self.variant.merges

    @property
    def replicated_loss_ops(self) -> frozenset[str]:
        return self.variant.replicated_loss_ops

    def regions_and_outputs(
        self, op: Op, box: Box
    ) -> tuple[tuple[Box | None, ...], tuple[Box, ...]]:
        """Returns the regions of all operands that a tile reads, and the boxes of all outputs it computes.

        Cached: operators of the same shape share one iteration space.
        """
        key = (id(op.space), box)
        if key not in self._regions:
            self._regions[key] = op.space.regions(box), op.space.output_boxes(box)
        return self._regions[key]

    def phases(self, op: Op) -> str:
        """Returns the phases in which an operator has to run: "F", "FB", "FBW" or "FW".

        With a split backward, an operator with parameters has "FBW" or, if it gives gradients of parameters
        only, "FW". Recomputation (R) is not included.
        """
        active = self.program.active
        if not has_backward(op, active):
            return "F"
        weights = trained_parameters(self.graph, op, active)
        if not self.program.plan.split_backward or not weights:
            return "FB"
        return "FBW" if len(inputs_with_gradient(op, active)) > len(weights) else "FW"

    def is_partial(self, op: Op) -> bool:
        """Returns whether some tiles give partial results."""
        boxes = self.variant.tiles[op.name].boxes
        # combine: how partial results are merged; "": the operator reduces no dimension
        return bool(op.space.combine) and any(op.space.is_partial(box) for box in boxes)

    def has_local_statistics(self, op: Op) -> bool:
        """Returns whether each tile takes its own batch statistics (`bn: local`), which are not merged."""
        return is_local_statistics(op, self.program.plan.bn)
