"""Gives slots to the tensors that stay on a device from step to step: parameters, buffers and constants.

A region is a box of a parameter, with the devices that hold it and the server that updates it, if there is
one (program/program.py). A shard is the rows of a region that one of its holders updates (ZeRO,
program/parameter_region.py). `slot_table.hulls`: for each variant, value -> bounding box of all that the
device reads of it. The role "frozen" is that of a parameter without gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from raddle.graph.box import Box, bounding_box
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Program
from raddle.runtime.actions import ShardView
from raddle.runtime.builders.slot_table import SlotSource, SlotTable
from raddle.runtime.zero3 import GatheredParameter


class PersistentSlots(NamedTuple):
    """The persistent slots that are updated, gathered or views of others, from `add_persistent_slots`."""

    updated_slots: list[int]  # slots of parameters that this device updates
    gathered: list[GatheredParameter]  # ZeRO-3: gathered before each use, released after it
    shard_views: list[ShardView]  # ZeRO-2: the shards that this device updates
    dtypes: dict[int, torch.dtype]  # in which parameters are held, by slot


def add_persistent_slots(program: Program, device: int, slot_table: SlotTable) -> PersistentSlots:
    """Adds a slot to `slot_table` for each parameter region, buffer and constant of a device.

    Returns lists of those slots that are updated, gathered before use, or views of other slots.
    """
    updated_slots: list[int] = []
    gathered: list[GatheredParameter] = []
    views: list[ShardView] = []
    dtypes: dict[int, torch.dtype] = {}
    for name, regions in program.regions.items():
        for region in regions:
            if device not in (*region.devices, region.server):
                continue
            # needs_sync: the holders and the server are more than one device
            if program.sharded and name in program.active and region.needs_sync:
                shard_slot = _add_shard(program, device, slot_table, name, region, gathered, views)
                updated_slots += [shard_slot] if shard_slot >= 0 else []
                slot = dict(slot_table.persistent[name])[region.box]
                dtypes[slot] = gather_dtype(program, name)
                continue
            slot = slot_table.add_persistent(name, "parameter", region.box)
            dtypes[slot] = held_dtype(program, name)
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
    return PersistentSlots(updated_slots, gathered, views, dtypes)


def held_dtype(program: Program, name: str) -> torch.dtype:
    """Returns the dtype in which a device holds a parameter that it does not gather."""
    return program.graph.values[name].dtype


def gather_dtype(program: Program, name: str) -> torch.dtype:
    """Returns the dtype in which a sharded parameter is gathered and held; its shards keep the module's."""
    return program.plan.parsed_precision.gather_dtype(held_dtype(program, name))


def reduce_dtype(program: Program, name: str) -> torch.dtype:
    """Returns the dtype in which the gradients of a sharded parameter are summed."""
    return program.plan.parsed_precision.reduce_dtype(gather_dtype(program, name))


def _add_shard(
    program: Program, device: int, slot_table: SlotTable, name: str, region: ParameterRegion,
    gathered: list[GatheredParameter], views: list[ShardView],
) -> int:  # fmt: skip
    """Adds slots for a region of a parameter and for this device's shard; returns the shard's slot.

    It returns -1 if the device has no shard. ZeRO-3 adds the region to `gathered`. In ZeRO-2 the shard is a
    view of the region, which is added to `views`.
    """
    shard = region.shard(device)
    if program.gathers_before_use:
        slot = slot_table.add_persistent(name, "gathered", region.box)
        gathered.append(GatheredParameter(slot, region.box.shape, gather_dtype(program, name)))
        return slot_table.add_shard(name, shard) if shard is not None else -1
    slot = slot_table.add_persistent(name, "parameter", region.box)
    if shard is None:
        return -1
    shard_slot = slot_table.add_shard_view(name, shard)
    source = SlotSource(name, "parameter", shard, shard_slot)
    views.append(ShardView(source, slot, shard.slices_within(region.box)))
    return shard_slot
