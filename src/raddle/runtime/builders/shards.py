"""Builds the actions that reduce-scatter gradients and all-gather parameters, block by block (ZeRO).

A Reduce or Gather names the parameters of a block, with their regions: boxes with the devices that hold
them. Regions on the same devices share one flat buffer (program/program.py). A shard is the rows of a
region that one holder updates. With groups of holders (HSDP), a device sends within its group, and sums its
shards with their replicas in other groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Gather, Program, Reduce
from raddle.runtime.actions import (
    ShardedBlock,
    ShardedRegion,
    StartGather,
    StartReduceScatter,
    StartReplicaSum,
)
from raddle.runtime.builders.persistent import gather_dtype, reduce_dtype
from raddle.runtime.builders.slot_table import SlotTable


class _BlockKey(NamedTuple):
    """Properties that all regions of a block have in common."""

    devices: tuple[int, ...]  # the group of this device
    replicas: tuple[int, ...]  # the devices with the same shards, or none
    # All devices that hold the regions. Without them, two regions with the same replicas on this device,
    # but different ones on another of its group, would be one block here and two blocks there.
    holders: tuple[int, ...]
    gather_dtype: torch.dtype
    reduce_dtype: torch.dtype


class ShardBuilder:
    """Builds the reduce-scatters and all-gathers of one device."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        self.blocks: list[ShardedBlock] = []
        self._numbers: dict[ShardedBlock, int] = {}  # a block is used by several instructions

    def reduce_scatter(self, reduce: Reduce, tag: int) -> list[StartReduceScatter]:
        """Returns the reduce-scatters of an instruction, one for each group of devices and dtype."""
        label = f"reduce {reduce.parameters[0]}"
        return [StartReduceScatter(n, tag, label, reduce.key) for n in self._block_numbers(reduce)]

    def sum_replicas(self, reduce: Reduce, tag: int) -> list[StartReplicaSum]:
        """Returns the sums over replicas: one for each reduce-scatter of the same parameters."""
        label = f"reduce {reduce.parameters[0]}"
        return [StartReplicaSum(n, tag, label, reduce.key) for n in self._block_numbers(reduce)]

    def gather(self, gather: Gather, tag: int) -> list[StartGather]:
        """Returns the all-gathers of an instruction; slot_lifetimes.py removes slots that are not used."""
        label = f"gather {gather.parameters[0]}"
        return [
            StartGather(n, tag, label, gather.key, tuple(r.slot for r in self.blocks[n].regions))
            for n in self._block_numbers(gather)
        ]

    def _block_numbers(self, collective: Reduce | Gather) -> list[int]:
        """Returns the numbers of the blocks of an instruction that this device takes part in."""
        by_group: dict[_BlockKey, list[tuple[str, ParameterRegion]]] = {}
        for name, regions in zip(collective.parameters, collective.regions, strict=True):
            for region in regions:
                if self.device in region.devices:
                    # group_size: the holders in a group (HSDP); 0: there is one group, without replicas
                    key = _BlockKey(
                        next(group for group in region.groups if self.device in group),
                        next(r for r in region.replicas if self.device in r)
                        if region.group_size
                        else (),
                        region.devices,
                        gather_dtype(self.program, name),
                        reduce_dtype(self.program, name),
                    )
                    by_group.setdefault(key, []).append((name, region))
        numbers = []
        for key, members in by_group.items():
            block = self._block(key, members)
            if block not in self._numbers:
                self._numbers[block] = len(self.blocks)
                self.blocks.append(block)
            numbers.append(self._numbers[block])
        return numbers

    def _block(self, key: _BlockKey, members: list[tuple[str, ParameterRegion]]) -> ShardedBlock:
        """Returns the block of these regions, which follow each other in its buffer."""
        regions, offset = [], 0
        for name, region in members:
            slots = dict(self.slot_table.persistent[name])
            shard_slots = dict(self.slot_table.shards.get(name, []))
            shard = region.shard(self.device)
            shard_slot = -1 if shard is None else shard_slots[shard]
            elements = region.elements_per_shard
            regions.append(
                ShardedRegion(slots[region.box], shard_slot, region.box.shape, elements, offset)
            )
            offset += elements
        return ShardedBlock(
            key.devices, tuple(regions), key.gather_dtype, key.reduce_dtype, offset, key.replicas
        )
