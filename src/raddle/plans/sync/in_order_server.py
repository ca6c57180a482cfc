"""`server`, `server:D`: whole parameters are updated on their first holder, or on device D.

Devices send to it and receive from it in the program's order, with one update at the end of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.sync_kind import NUMBER, Kind, Sync, at_most_one


class Inline(Sync):
    """A server that devices send to and receive from in the program's order."""

    inline: ClassVar[bool] = True

    def pieces(self, elements: int, holders: int) -> int:
        return 1

    def assign(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return [self.home(group) for group in holders]

    def home(self, holders: Sequence[int]) -> int:
        return holders[0] if self.server is None else self.server


def _read(words: Sequence[str]) -> Sync:
    at_most_one(words)
    return Inline(server=int(words[0]) if words else None)


KIND = Kind("server", (NUMBER,), (), _read)
