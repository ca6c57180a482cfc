"""Finds composites (batch norm, LSTM, ...) that a device can run as one native torch call.

The graph splits a composite into operators, which a plan may tile differently. If a device's tiles of all
these operators belong to one box of the composite, one fused torch call on that box replaces them: this is
faster. A FusedCall (graph/graph.py) names such a composite: its kind, operators, inputs and outputs. A
variant is a way in which some micro-batches run: their size, and the tiles (program/program.py).
`op.space.regions(box)`: the box of each operand that a tile reads. `variant.merges`: operators with partial
results. Letters: i is the name of an operand, o that of an output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raddle.graph.box import Box, bounding_box
from raddle.graph.graph import FusedCall, Op
from raddle.graph.ops.fused import SAMPLES_ONLY
from raddle.program.program import Variant


class NativeCalls(NamedTuple):
    """The native calls of one segment."""

    # Name of the operator in whose place the call runs -> the call
    by_last_op: dict[str, FusedCall]
    replaced: set[str]  # names of all operators that calls replace


class NativeCallBoxes(NamedTuple):
    """The boxes that a native call reads and computes on one device."""

    inputs: list[tuple[str, Box] | None]  # (value, box) of each argument; None: not passed
    outputs: dict[str, Box]  # value -> box


def native_calls_in_segment(variant: Variant, device: int, ops: Sequence[Op]) -> NativeCalls:
    """Returns the composites that a device runs as native calls in a segment with these operators."""
    segment_ops = {op.name: op for op in ops}
    native_calls = NativeCalls({}, set())
    for fused in variant.graph.fused_calls:
        if _is_one_box(variant, device, fused, segment_ops):
            present = [name for name in fused.ops if name in segment_ops]
            native_calls.by_last_op[present[-1]] = fused
            native_calls.replaced.update(present)
    return native_calls


def native_call_boxes(variant: Variant, device: int, fused: FusedCall) -> NativeCallBoxes:
    """Returns the boxes of a composite that runs as one native call on a device."""
    inside = set(fused.ops)
    ops = {
        op.name: op
        for op in variant.graph.ops
        if op.name in inside and device in variant.tiles[op.name].devices
    }
    read: dict[str, Box] = {}
    computed: dict[str, Box] = {}
    for op in ops.values():
        box = next(t.box for t in variant.tiles[op.name].tiles if t.device == device)
        for i, region in zip(op.inputs, op.space.regions(box), strict=True):
            if region is not None:
                read[i] = bounding_box([read.get(i, region), region])
        computed.update(zip(op.outputs, op.space.output_boxes(box), strict=True))
    inputs = [None if name is None else (name, read[name]) for name in _inputs(fused, ops)]
    return NativeCallBoxes(inputs, computed)


def _is_one_box(
    variant: Variant, device: int, fused: FusedCall, segment_ops: Mapping[str, Op]
) -> bool:
    """Returns whether the device's tiles of a composite form one box and are all in this segment."""
    if not any(name in segment_ops for name in fused.ops):
        return False
    # SAMPLES_ONLY: kinds (group norm, LSTM, ...) whose tiles may be split along samples only.
    # The operators of these kinds (time steps, gates) read parts of what the call reads, so the regions
    # below differ even if the tiles belong together; it is enough that only samples are split.
    sample_splits_only = fused.kind in SAMPLES_ONLY
    computed: dict[str, Box] = {}
    read: dict[str, Box | None] = {}
    for name in fused.ops:
        op = variant.graph.op(name)
        if name not in segment_ops:
            elsewhere = device not in variant.tiles[name].devices
            if op.traits.updates_buffer and elsewhere:  # other devices update running statistics
                continue
            return False
        boxes = [t.box for t in variant.tiles[name].tiles if t.device == device]
        if len(boxes) != 1 or name in variant.merges:
            return False
        if sample_splits_only and not _splits_samples_only(op, boxes[0]):
            return False
        for i, region in zip(op.inputs, op.space.regions(boxes[0]), strict=True):
            if i in computed and computed[i] != region:
                return False
            if (
                i not in computed
                and read.setdefault(i, region) != region
                and not sample_splits_only
            ):
                return False
        computed.update(zip(op.outputs, op.space.output_boxes(boxes[0]), strict=True))
    return all(i is None or read.get(i) is not None for i in _inputs(fused, segment_ops))


def _inputs(fused: FusedCall, ops: Mapping[str, Op]) -> list[str | None]:
    """Returns the arguments of a native call; None for running statistics that are not on this device."""
    computed = {o for name in fused.ops if name in ops for o in ops[name].outputs}
    not_computed = [o is not None and o not in computed for o in fused.outputs]
    if fused.kind == "batch_norm" and any(not_computed):
        return [*fused.inputs[:3], None, None]  # input, weight, bias
    return list(fused.inputs)


def _splits_samples_only(op: Op, box: Box) -> bool:
    """Returns whether a tile has the full range of every dimension but the samples ("n")."""
    return all(
        dim.name == "n" or (lo, hi) == (0, dim.size)
        for dim, lo, hi in zip(op.space.dims, box.lo, box.hi, strict=True)
    )
