"""`p3`: slices on parameter servers, the most urgent first; `p3:collective`: all-reduced slices.

The slices that the next forward uses first are sent first, and there is no barrier between steps. The
priority is the order of first use: `Program.priority` (program/program.py). For `p3:collective` it becomes
the static order of the all-reduces, `Plan.order` (searches/slice_order.py).

Paper: "Priority-based Parameter Propagation for Distributed DNN Training" (Jayarajan et al., MLSys 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from raddle.plans.sync.server_assignment import greedy
from raddle.plans.sync.servers import (
    DEFAULT_SLICE,
    PLACEMENT_OPTIONS,
    Servers,
    bundle_limit,
    parse_options,
)
from raddle.plans.sync.sync_kind import NUMBER, Sync, SyncKind, UnreadableOption

COLLECTIVE = "collective"


class P3(Servers):
    """Slices on servers, sent by priority."""

    by_priority: ClassVar[bool] = True


@dataclass(frozen=True)
class CollectiveSlices(Sync):
    """The same slices without servers: each is all-reduced, and updated on all holders."""

    slice: int = DEFAULT_SLICE  # elements
    bundled: bool = True  # small slices are joined (program/parameter_slices.py)
    collective: ClassVar[bool] = True
    by_priority: ClassVar[bool] = True

    def slice_count(self, elements: int, holders: int) -> int:
        return -(-elements // self.slice)

    @property
    def bundle_limit(self) -> int:
        return bundle_limit(self.slice) if self.bundled else 0

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return [-1] * len(sizes)  # no servers


def _parse(options: Sequence[str]) -> Sync:
    if COLLECTIVE not in options:  # the defaults of p3 differ from those of ps
        fields: dict[str, Any] = {"slice": DEFAULT_SLICE, "spread": greedy}
        return P3(**fields | parse_options(options))
    slice_options = [option for option in options if option != COLLECTIVE]
    for option in slice_options:
        # Only slice=N and `unbundled` go with `collective`: all other options are about servers.
        if not option.startswith("slice=") and option != "unbundled":
            raise UnreadableOption(option)
    return CollectiveSlices(**parse_options(slice_options))


# name, the options that it takes, examples for help texts and tests, parser of the options
KIND = SyncKind(
    "p3", (*PLACEMENT_OPTIONS, f"slice={NUMBER}", COLLECTIVE), ("p3", "p3:collective"), _parse
)
