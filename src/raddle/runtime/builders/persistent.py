"""What lasts from step to step on a device: parameters, whole or in rows, buffers and constants."""

from __future__ import annotations

from typing import NamedTuple

from raddle.graph.box import Box, hull
from raddle.program.program import Program
from raddle.runtime.builders.slot_table import Pieces
from raddle.runtime.zero3 import Whole


class Lasting(NamedTuple):
    """Slots of parameters that are updated here, and parameters that are there only while they are used."""

    updated: list[int]
    wholes: list[Whole]


def place_lasting(program: Program, device: int, pieces: Pieces) -> Lasting:
    """Gives slots to all that lasts on a device."""
    updated: list[int] = []
    wholes: list[Whole] = []
    for name, shares in program.regions.items():
        for share in shares:
            if device not in (*share.devices, share.server):
                continue
            if is_divided(program) and name in program.slices:
                wholes += _place_divided(program, device, pieces, name, share.box)
                continue
            slot = pieces.keep(name, "parameter", share.box)
            if name in program.active and share.server in (-1, device):
                updated.append(slot)
    for value in program.graph.values.values():
        full = Box.full(value.shape)
        read = [hulls[value.name] for hulls in pieces.hulls if value.name in hulls]
        if value.role == "buffer":
            pieces.keep(value.name, "buffer", full)
        elif value.role in ("frozen", "constant") and read:
            box = full if value.role == "constant" else hull(read)
            pieces.keep(value.name, value.role, box)
    return Lasting(updated, wholes)


def is_divided(program: Program) -> bool:
    """Whether rows of parameters are at their homes alone, and elsewhere while they are used."""
    return program.plan.syncing.divided and bool(program.slices)


def _place_divided(
    program: Program, device: int, pieces: Pieces, name: str, box: Box
) -> list[Whole]:
    """Rows of which this device is the home last; the rest of the box is there while it is used."""
    own = [s.box for s in program.slices[name] if s.server == device and box.holds(s.box)]
    assert len(own) <= 1, f"device {device} is the home of {len(own)} slices of {box}"
    if own == [box]:
        pieces.keep_rows(name, box, pieces.keep(name, "parameter", box))
        return []
    slot = pieces.keep(name, "whole", box)
    kept = pieces.keep_rows(name, own[0]) if own else -1
    where = own[0].within(box) if own else ()
    return [Whole(slot, box.shape, program.graph.values[name].dtype, kept, where)]
