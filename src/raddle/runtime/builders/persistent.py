"""Gives slots to the tensors that stay on a device from step to step: parameters, buffers and constants.

A region is a box of a parameter, with the devices that hold it and the server that updates it, if there is
one (program/program.py). `program.slices`: parameter -> its slices, the rows that are synchronised
separately; with ZeRO-3 these are the shards. `slot_table.hulls`: for each variant, value -> bounding box
of all that the device reads of it. The role "frozen" is that of a parameter without gradient.
"""

from __future__ import annotations

from typing import NamedTuple

from raddle.graph.box import Box, bounding_box
from raddle.program.program import Program
from raddle.runtime.builders.slot_table import SlotTable
from raddle.runtime.zero3 import GatheredParameter


class PersistentSlots(NamedTuple):
    """What `add_persistent_slots` returns."""

    updated_slots: list[int]  # slots of parameters that this device updates
    gathered: list[GatheredParameter]  # ZeRO-3: gathered before each use, released after it


def add_persistent_slots(program: Program, device: int, slot_table: SlotTable) -> PersistentSlots:
    """Adds a slot to `slot_table` for each parameter region, buffer and constant of a device."""
    updated_slots: list[int] = []
    gathered: list[GatheredParameter] = []
    for name, regions in program.regions.items():
        for region in regions:
            if device not in (*region.devices, region.server):
                continue
            if is_zero3(program) and name in program.slices:
                gathered += _add_zero3_slots(program, device, slot_table, name, region.box)
                continue
            slot = slot_table.add_persistent(name, "parameter", region.box)
            # active: it gets a gradient; server -1: each device that holds the region updates its copy
            if name in program.active and region.server in (-1, device):
                updated_slots.append(slot)
    for value in program.graph.values.values():
        full = Box.full(value.shape)
        # For each variant (a way in which micro-batches run): the box that the device reads.
        read = [hulls[value.name] for hulls in slot_table.hulls if value.name in hulls]
        if value.role == "buffer":
            slot_table.add_persistent(value.name, "buffer", full)
        elif value.role in ("frozen", "constant") and read:
            box = full if value.role == "constant" else bounding_box(read)
            slot_table.add_persistent(value.name, value.role, box)
    return PersistentSlots(updated_slots, gathered)


def is_zero3(program: Program) -> bool:
    """Whether parameters are sharded (ZeRO-3): each shard stays on its server and is gathered for use."""
    return program.plan.parsed_sync.zero3 and bool(program.slices)


def _add_zero3_slots(
    program: Program, device: int, slot_table: SlotTable, name: str, box: Box
) -> list[GatheredParameter]:
    """Adds slots for this device's shard of a parameter and for the gathered box, if that is larger.

    name, box: the parameter, and the box of it that the device needs gathered. Returns the gathered
    parameter; nothing if the shard is the whole box, which then stays on the device.
    """
    shards = [s.box for s in program.slices[name] if s.server == device and box.contains(s.box)]
    assert len(shards) <= 1, f"device {device} is the server of {len(shards)} slices of {box}"
    if shards == [box]:
        slot_table.add_shard(name, box, slot_table.add_persistent(name, "parameter", box))
        return []
    slot = slot_table.add_persistent(name, "gathered", box)
    shard_slot = slot_table.add_shard(name, shards[0]) if shards else -1
    shard_index = shards[0].slices_within(box) if shards else ()
    return [
        GatheredParameter(
            slot, box.shape, program.graph.values[name].dtype, shard_slot, shard_index
        )
    ]
