"""`p3`: slices of servers, the most urgent first, without a barrier; `p3:collective`: all-reduced slices.

Paper: "Priority-based Parameter Propagation for Distributed DNN Training" (Jayarajan et al., MLSys 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from raddle.plans.sync.server_assignment import greedy
from raddle.plans.sync.servers import HOMES, SLICE, Servers, read_words
from raddle.plans.sync.sync_kind import NUMBER, Kind, Sync, Unreadable

COLLECTIVE = "collective"


class P3(Servers):
    """Slices on servers: what the next forward needs first travels first."""

    urgent: ClassVar[bool] = True


@dataclass(frozen=True)
class Collective(Sync):
    """The same slices without homes: each is all-reduced, and updated on all holders."""

    slice: int = SLICE
    collective: ClassVar[bool] = True
    urgent: ClassVar[bool] = True

    def pieces(self, elements: int, holders: int) -> int:
        return -(-elements // self.slice)

    def assign(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return [-1] * len(sizes)


def _read(words: Sequence[str]) -> Sync:
    if COLLECTIVE not in words:
        fields: dict[str, Any] = {"slice": SLICE, "spread": greedy}
        return P3(**fields | read_words(words))
    sizes = [word for word in words if word != COLLECTIVE]
    for word in sizes:
        if not word.startswith("slice="):  # all others say where homes are
            raise Unreadable(word)
    return Collective(**read_words(sizes))


KIND = Kind("p3", (*HOMES, f"slice={NUMBER}", COLLECTIVE), ("p3", "p3:collective"), _read)
