"""`server`, `server:D`: whole parameters are updated on their first holder, or on device D.

Pushes, updates and pulls are instructions in the order of the program, like all others. With `ps`, in
contrast, they run concurrently, in the background. A parameter is updated once, at the end of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.sync_kind import NUMBER, Sync, SyncKind, check_at_most_one


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
    check_at_most_one(options)
    return InOrderServer(server=int(options[0]) if options else None)


# The option is the number D; there are no examples for error messages.
KIND = SyncKind("server", (NUMBER,), (), _parse)
