"""Builds the buckets in which a device all-reduces gradients, and the actions that start them.

A bucket is a group of gradients that are all-reduced together, as in DDP. `build_actions` calls this file.
A Reduce is the instruction that sums gradients of some parameters over devices. Each parameter has regions:
boxes with the devices that hold them (program/program.py). Regions on the same devices share a bucket. With
sharded parameters (ZeRO), shards.py builds reduce-scatters and all-gathers instead of all-reduces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from raddle.program.program import Gather, Program, Reduce
from raddle.runtime.actions import (
    Bucket,
    StartAllReduce,
    StartGather,
    StartReduceScatter,
    StartReplicaSum,
)
from raddle.runtime.builders.persistent import held_dtype
from raddle.runtime.builders.shards import ShardBuilder
from raddle.runtime.builders.slot_table import SlotTable


class BucketBuilder:
    """Builds the buckets of one device."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        self.buckets: list[Bucket] = []
        self.shards = ShardBuilder(program, device, slot_table)

    def build(
        self, i: Reduce | Gather, tag: int
    ) -> Sequence[StartAllReduce | StartReduceScatter | StartReplicaSum | StartGather]:
        """Returns the actions that start a collective, if this device takes part in it.

        tag: the number of this transfer, the same on all ranks (build_actions.py).
        """
        if isinstance(i, Gather):
            return self.shards.gather(i, tag)
        if self.program.sums_replicas(i):  # HSDP: the sum of shards over the groups of holders
            return self.shards.sum_replicas(i, tag)
        return (
            self.shards.reduce_scatter(i, tag) if self.program.sharded else self._all_reduce(i, tag)
        )

    def _all_reduce(self, reduce: Reduce, tag: int) -> list[StartAllReduce]:
        """Makes one bucket for each group of devices and dtype; returns the actions that start them.

        tag: the number of this transfer, the same on all ranks (build_actions.py).
        """
        # (devices, dtype) -> [(slot, number of elements), ...]
        by_group: dict[tuple[tuple[int, ...], torch.dtype], list[tuple[int, int]]] = {}
        for name, regions in zip(reduce.parameters, reduce.regions, strict=True):
            slots = dict(self.slot_table.persistent.get(name, []))
            for region in regions:
                if self.device in region.devices:
                    dtype = held_dtype(self.program, name)
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
