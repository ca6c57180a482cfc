"""Composites that one native call replaces, where a device's tiles of them are one box of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raddle.graph.box import Box, bounding_box
from raddle.graph.graph import FusedCall, Op
from raddle.graph.ops.fused import SAMPLES_ONLY
from raddle.program.program import Variant


class Natives(NamedTuple):
    """Of some operators: composites by the operator at which they run, and all that they replace."""

    last: dict[str, FusedCall]
    replaced: set[str]


class Boxes(NamedTuple):
    """What a native call reads (None: nothing of that input), and what it gives, by name."""

    inputs: list[tuple[str, Box] | None]
    outputs: dict[str, Box]


def run_as_one(variant: Variant, device: int, ops: Sequence[Op]) -> Natives:
    """Which composites a device runs as one call in a segment."""
    own = {op.name: op for op in ops}
    found = Natives({}, set())
    for fused in variant.graph.fused_calls:
        if _fits(variant, device, fused, own):
            present = [name for name in fused.ops if name in own]
            found.last[present[-1]] = fused
            found.replaced.update(present)
    return found


def boxes_of(variant: Variant, device: int, fused: FusedCall) -> Boxes:
    """Of a composite that runs as one call on a device."""
    inside = set(fused.ops)
    ops = {
        op.name: op
        for op in variant.graph.ops
        if op.name in inside and device in variant.tiles[op.name].devices
    }
    read: dict[str, Box] = {}
    made: dict[str, Box] = {}
    for op in ops.values():
        box = next(t.box for t in variant.tiles[op.name].tiles if t.device == device)
        for i, region in zip(op.inputs, op.space.regions(box), strict=True):
            if region is not None:
                read[i] = bounding_box([read.get(i, region), region])
        made.update(zip(op.outputs, op.space.output_boxes(box), strict=True))
    inputs = [None if name is None else (name, read[name]) for name in _inputs(fused, ops)]
    return Boxes(inputs, made)


def _fits(variant: Variant, device: int, fused: FusedCall, own: Mapping[str, Op]) -> bool:
    """Whether the tiles of a composite on a device are one box of it."""
    if not any(name in own for name in fused.ops):
        return False
    apart = fused.kind in SAMPLES_ONLY  # its steps and gates read parts of what the call reads
    made: dict[str, Box] = {}
    read: dict[str, Box | None] = {}
    for name in fused.ops:
        op = variant.graph.op(name)
        if name not in own:
            elsewhere = device not in variant.tiles[name].devices
            if op.traits.updates_buffer and elsewhere:
                continue
            return False
        boxes = [t.box for t in variant.tiles[name].tiles if t.device == device]
        if len(boxes) != 1 or name in variant.merges:
            return False
        if apart and not _by_samples(op, boxes[0]):
            return False
        for i, region in zip(op.inputs, op.space.regions(boxes[0]), strict=True):
            if i in made and made[i] != region:
                return False
            if i not in made and read.setdefault(i, region) != region and not apart:
                return False
        made.update(zip(op.outputs, op.space.output_boxes(boxes[0]), strict=True))
    return all(i is None or read.get(i) is not None for i in _inputs(fused, own))


def _inputs(fused: FusedCall, own: Mapping[str, Op]) -> list[str | None]:
    """Of batch norm, running statistics only where they are kept here."""
    kept = {o for name in fused.ops if name in own for o in own[name].outputs}
    absent = [o is not None and o not in kept for o in fused.outputs]
    if fused.kind == "batch_norm" and any(absent):
        return [*fused.inputs[:3], None, None]
    return list(fused.inputs)


def _by_samples(op: Op, box: Box) -> bool:
    return all(
        dim.name == "n" or (lo, hi) == (0, dim.size)
        for dim, lo, hi in zip(op.space.dims, box.lo, box.hi, strict=True)
    )
