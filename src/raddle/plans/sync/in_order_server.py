"""`server`, `server:D`: whole parameters are updated on their first holder, or on device D.

Devices send to it and receive from it in the program's order, with one update at the end of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.sync_kind import NUMBER, Sync, SyncKind, check_at_most_one


class InOrderServer(Sync):
    """A server that devices send to and receive from in the program's order."""

    in_order_server: ClassVar[bool] = True

    def slice_count(self, elements: int, holders: int) -> int:
        return 1

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return [self.region_server(group) for group in holders]

    def region_server(self, holders: Sequence[int]) -> int:
        return holders[0] if self.server is None else self.server


def _parse(options: Sequence[str]) -> Sync:
    check_at_most_one(options)
    return InOrderServer(server=int(options[0]) if options else None)


KIND = SyncKind("server", (NUMBER,), (), _parse)
