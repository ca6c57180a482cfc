"""Sums of gradients over the devices that hold a parameter, in buckets."""

from __future__ import annotations

import torch

from raddle.program.program import Program, Reduce
from raddle.runtime.actions import Bucket, StartAllReduce
from raddle.runtime.builders.slot_table import SlotTable


class BucketBuilder:
    """The buckets of one device, and all groups of devices that sum, in the same order on every rank."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        self.buckets: list[Bucket] = []
        self.groups: list[tuple[int, ...]] = []

    def add_groups(self, reduce: Reduce) -> None:
        """Every rank knows of every group, also of those that it is not in."""
        for shares in reduce.regions:
            self.groups += [s.devices for s in shares if s.devices not in self.groups]

    def build(self, reduce: Reduce, tag: int) -> list[StartAllReduce]:
        """A bucket for each group and type that this device takes part in."""
        by_group: dict[tuple[tuple[int, ...], torch.dtype], list[tuple[int, int]]] = {}
        for name, shares in zip(reduce.parameters, reduce.regions, strict=True):
            slots = dict(self.slot_table.persistent.get(name, []))
            for region in shares:
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
