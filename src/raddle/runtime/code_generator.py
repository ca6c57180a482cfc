"""Generates one Python function for a segment or for a merge on a device.

builders/codes.py calls it; function_writer.py writes the lines and has an example of a function.
A segment is a sequence of operators of the device without communication inside; its function runs the
device's tile of each operator. A merge combines the partial results of one operator. A piece is a box of a
tensor. A variant is a way in which some micro-batches run: their size, and the tiles (program/program.py).
A native call is one torch call, such as batch norm, that replaces several operators (native_calls.py).

`op.space` is the operator's iteration space: `regions(box)` gives the box of each operand that a tile reads
(None: nothing), `output_boxes(box)` what it computes of each output. `variant.merges` has the operators
whose tiles give partial results.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import torch

from raddle.graph.box import Box
from raddle.graph.graph import FusedCall, Op
from raddle.graph.operator_kind import kernel_key, tensor_attr
from raddle.graph.ops import make_kernel, merge_partials
from raddle.graph.ops.fused import FUSED_KERNELS
from raddle.plans.native_dropout import with_planned_dropout
from raddle.program.program import Cell, Program, Variant, tensors_per_part
from raddle.runtime.function_writer import FunctionWriter, GeneratedCode, Piece, TensorId
from raddle.runtime.native_calls import native_call_boxes, native_calls_in_segment


class CodeGenerator:
    """Generates one function. Make a new generator for each function.

    place: the torch device that the function computes on.
    held_boxes(tensor_id): the boxes of a tensor that the device holds before the function runs.
    argument_kind(piece): "differentiable", "weight" or "nondifferentiable".
    """

    def __init__(
        self, program: Program, variant: Variant, device: int, place: torch.device,
        held_boxes: Callable[[TensorId], Sequence[Box]], argument_kind: Callable[[Piece], str],
    ) -> None:  # fmt: skip
        self.program, self.variant, self.device, self.place = program, variant, device, place
        self.writer, self.argument_kind = FunctionWriter(held_boxes), argument_kind

    def segment(
        self, ops: Sequence[Op], needed: Iterable[str], *, in_place: bool = True
    ) -> GeneratedCode:
        """Returns the function of a segment: the tiles of its operators, in their order.

        needed: names of the values that are read after the segment; the function returns these.
        in_place: whether the function may update running statistics in place. If it is recomputed, it must
        find buffers unchanged when it runs a second time.
        """
        for op in ops:
            for tile in self.variant.tiles[op.name].tiles:
                if tile.device == self.device:
                    regions = op.space.regions(tile.box)
                    self.writer.announce_reads(zip(op.inputs, regions, strict=True))
        native = native_calls_in_segment(self.variant, self.device, ops)
        for op in ops:
            if op.name in native.by_last_op:
                self._write_fused(native.by_last_op[op.name], in_place=in_place)
            elif op.name not in native.replaced:
                self._write_tiles(op)
        needed_names = set(needed)
        return self._build(
            "segment", lambda tensor_id: isinstance(tensor_id, tuple) or tensor_id in needed_names
        )

    def merge(self, op: Op, cells: Sequence[Cell]) -> GeneratedCode:
        """Returns the function that computes boxes of an operator's output from partial results.

        cells: these boxes, each with the numbers of the tiles that have a partial result of it (`parts`)
        and with the devices that merge it.
        """
        tiles, writer = self.variant.tiles[op.name].tiles, self.writer
        for cell in cells:
            if self.device not in cell.devices:
                continue
            boxes = [tiles[p].box for p in cell.parts]
            # For each tile, the variables that hold the tensors of its partial result
            parts = [
                [
                    writer.region_variable((op.name, p, k), cell.box)
                    for k in range(tensors_per_part(op, tiles[p].box))
                ]
                for p in cell.parts
            ]
            into = [(name, cell.box) for name in op.outputs]
            if len(boxes) == 1 and not op.space.is_partial(boxes[0]):  # nothing to combine
                writer.add_line(f"({', '.join(parts[0])},)", into)
            else:
                packed = "".join(f"({', '.join(variables)},), " for variables in parts)
                key = kernel_key(op), tuple(boxes)
                writer.add_call(_merge_function(op, boxes), f"({packed})", into, key=key)
        return self._build("merge", lambda tensor_id: True)

    def _build(self, name: str, is_needed: Callable[[TensorId], bool]) -> GeneratedCode:
        """Makes the function; it returns all tensors that it computes and that are needed."""
        results = [
            (Piece(tensor_id, box), variable)
            for tensor_id, boxes in self.writer.computed.items()
            for box, variable in boxes
            if is_needed(tensor_id)
        ]
        return self.writer.build(
            name, f"{name} of device {self.device}", self.argument_kind, results
        )

    def _write_tiles(self, op: Op) -> None:
        """Writes one kernel call for each tile of an operator on this device."""
        writer = self.writer
        for number, tile in enumerate(self.variant.tiles[op.name].tiles):
            if tile.device != self.device:
                continue
            regions = list(op.space.regions(tile.box))
            # strided: its windows may ignore the last elements of its input (see _untrimmed_region)
            if op.traits.strided and regions[0] is not None:
                held_boxes = writer.boxes(op.inputs[0])
                regions[0] = _untrimmed_region(op, tile.box, regions[0], held_boxes)
            arguments = [
                "None" if region is None else writer.region_variable(name, region)
                for name, region in zip(op.inputs, regions, strict=True)
            ]
            output_boxes = op.space.output_boxes(tile.box)
            if op.name in self.variant.merges:
                # The tensors of one partial result: usually one; for mean and variance, two
                count = tensors_per_part(op, tile.box)
                into: list[tuple[TensorId, Box]] = [
                    ((op.name, number, k), output_boxes[0]) for k in range(count)
                ]
            else:
                into = list(zip(op.outputs, output_boxes, strict=True))
            # tensor_attr: an integer that the function gets as an argument, as it differs between operators
            # that are otherwise equal; None: the operator has none
            number_to_pass, op_to_run = tensor_attr(op), self._as_planned(op)
            if number_to_pass is not None:
                arguments.append(writer.number_variable(number_to_pass))
            run = make_kernel(op_to_run, tile.box, self.place)
            # key: equal for equal kernels; functions whose calls have equal keys are compiled only once
            key = kernel_key(op_to_run), tile.box
            writer.add_call(run, ", ".join(arguments), into, key=key)

    def _as_planned(self, op: Op) -> Op:
        """Returns the operator that runs for `op`, as the plan's batch norm and dropout need it."""
        planned = with_planned_dropout(self.program.plan, op, self.variant.tiles[op.name])
        return self._with_local_statistics(planned)

    def _with_local_statistics(self, op: Op) -> Op:
        """Returns the operator that runs for `op`: another one if it is part of a local batch norm.

        With local batch norm, each device has the statistics of its samples only. Then the correction
        n/(n-1) of the running variance uses the number n of elements on this device.
        """
        if self.program.plan.bn != "local" or not op.traits.updates_buffer:
            return op
        # Input 2 is the mean of this batch; `source` computes it.
        source = next(o for o in self.variant.graph.ops if op.inputs[2] in o.outputs)
        tiles = self.variant.tiles[source.name].tiles
        boxes = [t.box for t in tiles if t.device == self.device]
        if len(boxes) != 1:
            return op
        count = math.prod(boxes[0].shape[d] for d in source.space.reduced_dims)
        return dataclasses.replace(op, attrs={**op.attrs, "unbias": count / max(1, count - 1)})

    def _write_fused(self, fused: FusedCall, *, in_place: bool) -> None:
        """Writes one native call in place of the operators of a composite."""
        boxes = native_call_boxes(self.variant, self.device, fused)
        arguments = [  # each read is (value, box)
            "None" if read is None else self.writer.region_variable(*read) for read in boxes.inputs
        ]
        attrs = {**fused.attrs, "in_place": in_place}
        run, key = FUSED_KERNELS[fused.kind](attrs), (fused.kind, repr(sorted(attrs.items())))
        into = [
            None if name is None or name not in boxes.outputs else (name, boxes.outputs[name])
            for name in fused.outputs
        ]
        # The last None: further results of the call, if any, are ignored.
        self.writer.add_call(run, ", ".join(arguments), [*into, None], key=key)


def _merge_function(op: Op, boxes: list[Box]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Returns a function that combines partial results of an operator; boxes: of their tiles."""
    return lambda parts: merge_partials(op, parts, boxes)


def _untrimmed_region(op: Op, box: Box, region: Box, held_boxes: Sequence[Box]) -> Box:
    """Returns the box that a strided convolution or pooling reads: a held box, if possible, else `region`.

    With a stride, a window may ignore the last elements of its input. A held box that has only such
    elements in addition to the region can be passed whole; cutting them off would cost a copy. Example:
    windows of 1 row with stride 2 read the rows 0 and 2; a held box with the rows 0 to 3 is passed whole.
    """
    # For each dimension of operand 0, (low, high) of what the windows cover, including padding
    spans = op.space.spans(0, box)
    strides = (1, 1, *op.attrs["stride"])  # samples and channels have none
    for piece in held_boxes:
        excess = [a - b for a, b in zip(piece.hi, region.hi, strict=True)]
        # choose_padding (graph/ops/conv.py) may pad the high side like the low side (lo - low) though it
        # needs none. That padding and the excess together must be less than a stride: else one more window
        # would fit.
        # m: excess, s: stride, (lo, hi): region, (low, high): span, all of one dimension
        fits = all(
            m == 0 or (0 < m < s - (lo - low) and high == hi)
            for m, s, lo, hi, (low, high) in zip(
                excess, strides, region.lo, region.hi, spans, strict=True
            )
        )
        if piece.lo == region.lo and fits:
            return piece
    return region
