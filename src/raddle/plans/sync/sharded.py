"""`sharded`: holders update equal shares of the rows; `sharded:parameters`: and they alone keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.server_assignment import round_robin
from raddle.plans.sync.sync_kind import Kind, Sync, at_most_one


class Sharded(Sync):
    """Every holder is the home of an equal share of the rows (ZeRO-2)."""

    def pieces(self, elements: int, holders: int) -> int:
        return holders

    def assign(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return round_robin(sizes, holders)


class Divided(Sharded):
    """Only homes keep rows: all others pull them before each use (ZeRO-3)."""

    divided: ClassVar[bool] = True


def _read(words: Sequence[str]) -> Sync:
    at_most_one(words)
    return Divided() if words else Sharded()


KIND = Kind("sharded", ("parameters",), ("sharded", "sharded:parameters"), _read)
