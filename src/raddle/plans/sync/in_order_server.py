"""`server`, `server:D`: whole parameters are updated on their first holder, or on device D.

Pushes, updates and pulls are instructions in the order of the program, like all others. With `ps`, in
contrast, they run concurrently, in the background. A parameter is updated once, at the end of a step. With
`after`, a device pushes when its whole backward has ended, not during it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.sync_kind import (
    AFTER,
    NUMBER,
    Sync,
    SyncKind,
    check_at_most_one,
    split_after,
)


class InOrderServer(Sync):
    """One server for each parameter; devices push and pull in the order of the program."""

    in_order_server: ClassVar[bool] = True

    def slice_count(self, elements: int, holders: int) -> int:
        return 1

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return [self.region_server(group) for group in holders]

    def region_server(self, holders: Sequence[int]) -> int:
        return holders[0] if self.server is None else self.server


def _parse(options: Sequence[str]) -> Sync:
    numbers, after_backward = split_after(options)
    check_at_most_one(numbers)
    server = int(numbers[0]) if numbers else None
    return InOrderServer(server=server, after_backward=after_backward)


# The options are the number D and `after`; there are no examples for error messages.
KIND = SyncKind("server", (NUMBER, AFTER), (), _parse)
