"""A region of a parameter: a box that the same devices hold; and how its rows are sharded over them (ZeRO).

The rows are divided into equal shards, one for each holder in the order of `devices`; only the last ones
may have fewer rows, or none:

    10 rows, 4 holders      rows 0-2 | 3-5 | 6-8 | 9

In the buffers of collectives every shard takes the same place, so one with fewer rows is padded. The shards
of several parameters lie one after the other, so the place of a parameter is the same in all shards.
fully_shard of PyTorch (FSDP2) divides rows in the same way.

With groups of holders (HSDP), the rows are sharded within each group, and every group has all rows. The
replicas of a shard are the devices with the same position in every group:

    10 rows, 8 holders      group 0: devices 0 1 2 3      group 1: devices 4 5 6 7
    in groups of 4          rows 0-2 | 3-5 | 6-8 | 9      rows 0-2 | 3-5 | 6-8 | 9
                            the replicas of rows 3-5: devices 1 and 5
"""

from __future__ import annotations

from typing import NamedTuple

from raddle.graph.box import Box
from raddle.program.collective_kind import Collective


class ParameterRegion(NamedTuple):
    """A box of a parameter with its holders, the devices that have a copy of it."""

    box: Box
    devices: tuple[int, ...]  # the holders
    server: int = -1  # the device that updates the box; -1: every holder updates its copy
    group_size: int = 0  # the number of holders in a group that shards the rows; 0: all holders

    @property
    def first_updater(self) -> int:
        """The device that stands for all copies, where the region must be counted or sent once."""
        return self.updaters[0]

    @property
    def updaters(self) -> tuple[int, ...]:
        """The devices that apply the optimizer to the region."""
        return self.devices if self.server < 0 else (self.server,)

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The box as a tuple: code about bundles, which have several boxes, can so take a region too."""
        return (self.box,)

    @property
    def needs_sync(self) -> bool:
        """Whether gradients have to be summed or sent: holders and server are more than one device."""
        return len({*self.devices, self.server} - {-1}) > 1

    @property
    def shard_count(self) -> int:
        """The number of shards of the rows: that of the holders in a group."""
        return self.group_size or len(self.devices)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of holders; each has all rows."""
        size = self.shard_count
        return tuple(self.devices[at : at + size] for at in range(0, len(self.devices), size))

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """By shard, the devices that hold it: one of each group."""
        return tuple(self.devices[place :: self.shard_count] for place in range(self.shard_count))

    def rings(self, collective: Collective) -> tuple[tuple[int, ...], ...]:
        """Returns the devices that take part in a collective together, in one tuple or several.

        Shards are reduce-scattered and all-gathered within groups, and all-reduced across groups.
        """
        if collective is not Collective.ALL_REDUCE:
            return self.groups
        return self.replicas if self.group_size else (self.devices,)

    def ring_elements(self, collective: Collective) -> int:
        """Returns the elements of the full buffer (collective_kind.py) of each ring of a collective."""
        if collective is not Collective.ALL_REDUCE:
            return self.padded_elements
        return self.elements_per_shard if self.group_size else self.box.volume

    @property
    def rows_per_shard(self) -> int:
        """The rows that a shard has, or is padded to; a scalar counts as one row."""
        rows = self.box.shape[0] if self.box.shape else 1
        return -(-rows // self.shard_count)

    @property
    def elements_per_shard(self) -> int:
        """The elements that a shard has, or is padded to."""
        rows = self.box.shape[0] if self.box.shape else 1
        return self.rows_per_shard * (self.box.volume // rows) if rows else 0

    @property
    def padded_elements(self) -> int:
        """Elements of the shards of a group together, with their padding."""
        return self.shard_count * self.elements_per_shard

    @property
    def shard_volumes(self) -> list[int]:
        """By holder, the elements of its shard, without padding."""
        total, size = self.box.volume, self.elements_per_shard
        volumes = [max(0, min(size, total - place * size)) for place in range(self.shard_count)]
        return volumes * len(self.groups)

    def shard(self, device: int) -> Box | None:
        """Returns the box that a holder updates; None if the holder has no rows of the region."""
        place, box = self.devices.index(device) % self.shard_count, self.box
        if not box.shape:
            return box if place == 0 else None
        low = box.lo[0] + place * self.rows_per_shard
        high = min(low + self.rows_per_shard, box.hi[0])
        return Box((low, *box.lo[1:]), (high, *box.hi[1:])) if low < high else None
