"""Computes the bytes of each value on each device, and which views need no memory.

The bytes are equal for all micro-batches of a variant. A variant is a graph with tiles: micro-batches of
different sizes, or on different replicas of a pipeline stage, have different variants (program.Variant). A
segment is a sequence of a device's operators without communication inside; it is run and recomputed as one
piece (program/segments.py). A cell is a box of an output that is merged from partial results
(program.Cell).
"""

# d: a device, o: an output; in `_volumes`, d is a dimension

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from raddle.costs.saved_for_backward import saved_for_backward
from raddle.graph.box import Box, subtract
from raddle.graph.graph import Op
from raddle.plans.native_dropout import with_planned_dropout
from raddle.plans.regions import operand_regions
from raddle.plans.tiling import Grid, Tiling
from raddle.program.program import Message, Move, Program, Variant, tensors_per_part
from raddle.program.segments import segments
from raddle.program.value_holders import always_local

Array = np.ndarray


class ValueSizes:
    """Bytes of values in a variant of a program; variant: its number. All arrays are by device."""

    def __init__(self, program: Program, variant: int = 0) -> None:
        self.program, self.count, self.variant_number = program, program.plan.devices, variant
        self.variant = program.variants[variant]
        self.graph = self.variant.graph
        # By operator: which of its inputs and outputs its backward needs.
        self.saved = {
            op.name: saved_for_backward(
                self.graph,
                program.active,
                with_planned_dropout(program.plan, op, self.variant.tiles[op.name]),
            )
            for op in self.graph.ops
        }
        self.output_bytes: dict[str, Array] = {}  # by value: bytes of the complete (merged) value
        self.partial_bytes: dict[str, Array] = {}  # by operator with partial results: their bytes
        # By device, then by operator: the operators of its segment.
        self._segment_ops: dict[int, dict[str, tuple[str, ...]]] = {}
        for op in self.graph.ops:
            self._add_bytes(op)
        sent: dict[str, tuple[Message, ...]] = {}  # by value: the messages that bring it to readers
        for i in program.instructions:
            if isinstance(i, Move) and i.key.variant == variant and i.kind.is_activation:
                sent.setdefault(i.value, i.messages)
        # By view operator: on which devices its output needs no memory of its own.
        self.free_views = {
            op.name: self._is_free_view(op, sent) for op in self.graph.ops if op.traits.is_view
        }
        self.input_bytes = {
            name: read_bytes(program, self.variant, [name])
            for name in self.graph.inputs
            if self.graph.values[name].role == "input"
        }

    @cached_property
    def _segments(self) -> dict[str, Array]:
        """By recomputed operator: by device, the number of its segment, or -1."""
        segment_numbers: dict[str, Array] = {}
        names = {name for block in self.program.plan.recompute for name in block}
        for d in range(self.count) if names else ():
            for number, ops in enumerate(segments(self.program, d, self.variant_number)):
                for op in ops:
                    if op.name in names:
                        segment_numbers.setdefault(op.name, np.full(self.count, -1))[d] = number
        return segment_numbers

    def segment_of(self, op: str, device: int) -> tuple[str, ...]:
        """Returns the operators of the segment of `op` on a device; a segment runs as one call."""
        if device not in self._segment_ops:
            op_lists = segments(self.program, device, self.variant_number)
            names_by_segment = [tuple(o.name for o in ops) for ops in op_lists]
            self._segment_ops[device] = {
                name: names for names in names_by_segment for name in names
            }
        return self._segment_ops[device].get(op, ())

    def recomputed_together(self, value: str, reader: str) -> Array:
        """Returns by device whether a value and its reader are recomputed in the same segment."""
        segment_numbers = self._segments
        # Role "op": an operator computes the value.
        if reader not in segment_numbers or self.graph.values[value].role != "op":
            return np.zeros(self.count, bool)
        producer = self._producers[value].name
        if producer not in segment_numbers or producer in self.variant.merges:
            return np.zeros(self.count, bool)
        return np.asarray(
            (segment_numbers[producer] >= 0)
            & (segment_numbers[producer] == segment_numbers[reader])
        )

    @cached_property
    def _producers(self) -> dict[str, Op]:
        """By value, the operator that computes it."""
        return {o: op for op in self.graph.ops for o in op.outputs}

    @cached_property
    def copies(self) -> dict[str, Array]:
        """By operator, the bytes of the copies that autocast makes of its operands and the backward needs.

        The operators of one native call share a copy. A weight that is gathered in the dtype of the cast
        needs none.
        """
        program, precision = self.program, self.program.plan.parsed_precision
        nbytes, seen = dict[str, Array](), set[tuple[str, str]]()
        for op in self.graph.ops:
            for operand, name in enumerate(op.inputs):
                cast, value = self.graph.casts.get(op.name), self.graph.values[name]
                key = (op.layer if op.composite_kind else op.name, name)
                gathered = program.sharded and value.role == "parameter"
                if (
                    name not in self.saved[op.name].copies
                    or key in seen
                    or (gathered and precision.gather_dtype(value.dtype) == cast)
                ):
                    continue
                assert cast is not None
                seen.add(key)
                total = nbytes.setdefault(op.name, self.zeros())
                for d, region in operand_regions(op, operand, self.variant.tiles[op.name]):
                    total[d] += 0 if region is None else region.volume * cast.itemsize
        return nbytes

    def zeros(self) -> Array:
        """Returns zero bytes for each device."""
        return np.zeros(self.count, np.int64)

    def _add_bytes(self, op: Op) -> None:
        """Sets the bytes of an operator's outputs and partial results."""
        tiling = self.variant.tiles[op.name]
        devices = np.array(tiling.devices)
        if op.name in self.variant.merges:
            elements = self.zeros()
            for tile, volume in zip(
                tiling.tiles, _volumes(tiling, op.space.outputs[0]), strict=True
            ):
                # A partial result may be two tensors, as a mean and a variance.
                elements[tile.device] += volume * tensors_per_part(op, tile.box)
            self.partial_bytes[op.name] = elements * self.program.element_bytes(op.outputs[0])
        for name, dims in zip(op.outputs, op.space.outputs, strict=True):
            size = self.zeros()
            for cell in self.variant.merges.get(op.name, ()):
                size[list(cell.devices)] += cell.box.volume
            if op.name not in self.variant.merges:
                np.add.at(size, devices, _volumes(tiling, dims))
            self.output_bytes[name] = size * self.program.element_bytes(name)

    def _is_free_view(self, op: Op, messages: Mapping[str, Sequence[Message]]) -> Array:
        """Returns by device whether a view operator needs no memory.

        It needs none if each of its tiles reads a region that lies in a single box which the device holds.
        messages: by value, the messages that bring the value to its readers.
        """
        free = np.zeros(self.count, bool)
        free[list(self.variant.tiles[op.name].devices)] = True
        base = op.inputs[0]
        # A view of an input or a parameter: the device holds the region that it reads anyway.
        if self.graph.values[base].role != "op":
            return free
        producer = self._producers[base]
        merged = self.variant.merges.get(producer.name)
        tiling, k = self.variant.tiles[producer.name], producer.outputs.index(base)
        access = op.space.operands[0]
        if not merged and always_local(
            tiling, producer.space, k, self.variant.tiles[op.name], access
        ):
            return free
        held: dict[int, list[Box]] = {}  # by device: the boxes of `base` that it holds
        # (box, device) of all parts of `base` that devices compute, merge or receive
        pieces = [(c.box, d) for c in merged for d in c.devices] if merged else [
            (producer.space.output_boxes(t.box)[k], t.device) for t in tiling.tiles
        ]  # fmt: skip
        pieces += [(b, m.target) for m in messages.get(base, ()) for b in m.boxes]
        for box, d in pieces:
            held.setdefault(d, []).append(box)
        for tile in self.variant.tiles[op.name].tiles:
            region = op.space.regions(tile.box)[0]
            if region is not None and not any(
                b.contains(region) for b in held.get(tile.device, [])
            ):
                free[tile.device] = False
        return free


def read_bytes(program: Program, variant: Variant, names: Iterable[str]) -> Array:
    """Returns by device the bytes that operators read of some values (inputs, buffers, parameters …)."""
    total = np.zeros(program.plan.devices, np.int64)
    read: dict[str, dict[int, set[Box]]] = {name: {} for name in names}
    for op in variant.graph.ops:
        for operand, name in enumerate(op.inputs):
            if name in read:
                for d, region in operand_regions(op, operand, variant.tiles[op.name]):
                    if region is not None:
                        read[name].setdefault(d, set()).add(region)
    for name, by_device in read.items():
        for d, regions in by_device.items():
            total[d] += program.element_bytes(name) * _union_volume(sorted(regions))
    return total


def _volumes(tiling: Tiling, dims: Sequence[int]) -> Array:
    """Returns by tile the number of elements of its box in the given dimensions."""
    if not isinstance(tiling, Grid):
        return np.array(
            [
                np.prod([t.box.hi[d] - t.box.lo[d] for d in dims], dtype=np.int64)
                for t in tiling.tiles
            ]
        )
    volumes = np.ones(1, np.int64)
    for d, cuts in enumerate(tiling.cuts):
        extents = np.diff(cuts) if d in dims else np.ones(len(cuts) - 1, np.int64)
        volumes = np.multiply.outer(volumes, extents).reshape(-1)
    return np.repeat(volumes, tiling.copies)


def _union_volume(boxes: Sequence[Box]) -> int:
    """Returns the number of elements that boxes cover together."""
    return sum(piece.volume for i, box in enumerate(boxes) for piece in subtract(box, boxes[:i]))
