"""Builds the buckets in which a device all-reduces gradients, and the actions that start them.

A Reduce is the instruction that all-reduces gradients of some parameters. Each parameter has regions: boxes
with the devices that hold them (program/program.py). Regions on the same devices share a bucket.
"""

from __future__ import annotations

import torch

from raddle.program.program import Gather, Program, Reduce
from raddle.runtime.actions import Bucket, StartAllReduce
from raddle.runtime.builders.slot_table import SlotTable


class BucketBuilder:
    """Builds the buckets of one device."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        self.buckets: list[Bucket] = []
        # All process groups of the program, in the same order on every rank: torch.distributed needs
        # every rank to create every group, even groups that the rank is not in.
        self.groups: list[tuple[int, ...]] = []

    def add_groups(self, collective: Reduce | Gather) -> None:
        """Notes the groups of devices that take part in this instruction together."""
        for regions in collective.regions:
            self.groups += [r.devices for r in regions if r.devices not in self.groups]

    def build(self, reduce: Reduce, tag: int) -> list[StartAllReduce]:
        """Makes one bucket for each group of devices and dtype that this device takes part in.

        tag: the number of this transfer, the same on all ranks (build_actions.py).
        """
        # (devices, dtype) -> [(slot, number of elements), ...]
        by_group: dict[tuple[tuple[int, ...], torch.dtype], list[tuple[int, int]]] = {}
        for name, regions in zip(reduce.parameters, reduce.regions, strict=True):
            slots = dict(self.slot_table.persistent.get(name, []))
            for region in regions:
                if self.device in region.devices:
                    dtype = self.program.graph.values[name].dtype
                    members = by_group.setdefault((region.devices, dtype), [])
                    members.append((slots[region.box], region.box.volume))
        actions = []
        for (devices, dtype), members in by_group.items():
            elements = sum(volume for _, volume in members)
            actions.append(
                StartAllReduce(len(self.buckets), tag, f"reduce {reduce.parameters[0]}", reduce.key)
            )
            self.buckets.append(Bucket(devices, tuple(s for s, _ in members), dtype, elements))
        return actions
