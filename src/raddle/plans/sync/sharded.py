"""`sharded` (ZeRO-2) and `sharded:parameters` (ZeRO-3): every holder updates its shard of the rows.

Parameters are sharded in blocks of operators (program/parameter_blocks.py): one reduce-scatter sums the
gradients of a block, one all-gather brings its parameters back. The optimizer wrapper, sync.Optimizer, does
not know blocks: there, the shards are slices, and every holder is the server of one.

With `sharded:after`, gradients are sent when the whole backward has ended, not during it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.server_assignment import round_robin
from raddle.plans.sync.sync_kind import AFTER, Sync, SyncKind, check_at_most_one


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
    check_at_most_one(options)
    if AFTER in options:
        return Sharded(after_backward=True)
    return Zero3() if options else Sharded()


KIND = SyncKind("sharded", ("parameters", AFTER), ("sharded", "sharded:parameters"), _parse)
