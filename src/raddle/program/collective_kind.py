"""The kinds of collective operations among a group of devices, its members.

`nbytes` of a collective, here and in costs/, is always the size of a *full* buffer on one of its P members:

all-reduce      the buffer that every member has before and after it
all-gather      the gathered buffer; a member contributes a P-th of it
reduce-scatter  the buffer before it; a member keeps a P-th of the sum
all-to-all      the buffer that every member has; it keeps a P-th and sends a P-th to each other member
broadcast       the buffer that one member, the root, sends to all others
"""

from __future__ import annotations

from enum import Enum


class Collective(str, Enum):
    """A kind of collective operation, with the name that `recognise_collective` gives it, if any."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"

    def __str__(self) -> str:
        return str(self.value)
