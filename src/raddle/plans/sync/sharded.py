"""`sharded`: holders update equal shares of the rows; `sharded:parameters`: and they alone keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.server_assignment import round_robin
from raddle.plans.sync.sync_kind import Sync, SyncKind, check_at_most_one


class Sharded(Sync):
    """Every holder is the home of an equal share of the rows (ZeRO-2)."""

    def slice_count(self, elements: int, holders: int) -> int:
        return holders

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return round_robin(sizes, holders)


class Zero3(Sharded):
    """Only homes keep rows: all others pull them before each use (ZeRO-3)."""

    zero3: ClassVar[bool] = True


def _parse(options: Sequence[str]) -> Sync:
    check_at_most_one(options)
    return Zero3() if options else Sharded()


KIND = SyncKind("sharded", ("parameters",), ("sharded", "sharded:parameters"), _parse)
