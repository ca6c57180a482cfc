"""`sharded` (ZeRO-2) and `sharded:parameters` (ZeRO-3): every holder updates its shard of the rows.

With `group=N`, as in `sharded,group=8`, the holders of a parameter are cut into groups of N consecutive
ones, such as the devices of a node. Rows are sharded within a group, and every group has all rows: the sums
of gradients are then all-reduced across groups. PyTorch calls this HSDP, hybrid sharded data parallel.

Parameters are sharded in blocks of operators (program/parameter_blocks.py): one reduce-scatter sums the
gradients of a block, one all-gather brings its parameters back. The optimizer wrapper, sync.Optimizer, does
not know blocks: there, the shards are slices, and every holder is the server of one.

With `sharded:after`, gradients are sent when the whole backward has ended, not during it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.errors import InputError
from raddle.plans.sync.server_assignment import round_robin
from raddle.plans.sync.sync_kind import (
    AFTER,
    NUMBER,
    Sync,
    SyncKind,
    UnreadableOption,
    split_after,
)

GROUP = "group="  # begins the option that says how many devices a group has


class Sharded(Sync):
    """ZeRO-2: rows are divided into equal shards, and every holder updates one."""

    shards: ClassVar[bool] = True

    def slice_count(self, elements: int, holders: int) -> int:
        return holders

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return round_robin(sizes, holders)


class Zero3(Sharded):
    """ZeRO-3: a holder keeps only its shard of the parameters; blocks are gathered before each use."""

    zero3: ClassVar[bool] = True


def _parse(options: Sequence[str]) -> Sync:
    others, after_backward = split_after(options)
    groups = [option for option in others if option.startswith(GROUP)]
    # What is left can only be "parameters", which means ZeRO-3.
    zero3 = [option for option in others if option not in groups]
    for repeated in (*groups[1:], *zero3[1:]):
        raise UnreadableOption(repeated)
    if zero3 and after_backward:
        raise UnreadableOption(AFTER)
    group_size = int(groups[0].removeprefix(GROUP)) if groups else 0
    if groups and group_size < 2:
        raise InputError(
            f"sync has {groups[0]}, but parameters are sharded among two devices or more: use group=2 or "
            "a larger number, or the sync allreduce."
        )
    if zero3:
        return Zero3(group_size=group_size)
    return Sharded(after_backward=after_backward, group_size=group_size)


KIND = SyncKind(
    "sharded", ("parameters", AFTER, GROUP + NUMBER),
    ("sharded", "sharded:parameters", "sharded:parameters,group=2"), _parse,
)  # fmt: skip
