"""`ps`: homes are servers, spread over the holders: ps:distributed,sliced,greedy,ssp=2.

Words: a device (one server there), `one` (on device 0) or `distributed`; `whole`, `sliced` or `slice=N`
elements; `round-robin` or `greedy`; `sync`, `async` or `ssp=S`: no worker is more than S steps ahead of the
slowest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raddle.plans.sync.server_assignment import greedy, round_robin
from raddle.plans.sync.sync_kind import NUMBER, Sync, SyncKind, UnreadableOption

DEFAULT_SLICE = 250_000  # elements: fills a link of 1 Gbit/s with two of them under way
PLACEMENT_OPTIONS = (
    NUMBER,
    "one",
    "distributed",
    "round-robin",
    "greedy",
)  # words that say where homes are
_OPTION_FIELDS: dict[str, dict[str, Any]] = {
    "one": {"server": 0},
    "distributed": {"server": None},
    "round-robin": {"spread": round_robin},
    "greedy": {"spread": greedy},
    "whole": {"slice": 0},
    "sliced": {"slice": DEFAULT_SLICE},
    "sync": {"staleness": 0},
    "async": {"staleness": None},
}


@dataclass(frozen=True)
class Servers(Sync):
    """Parameters, or their slices, are updated on one `server`, or on those of `spread`."""

    slice: int = 0  # elements; 0: whole parameters
    spread: Callable[[Sequence[int], Sequence[Sequence[int]]], list[int]] = round_robin

    def slice_count(self, elements: int, holders: int) -> int:
        return -(-elements // self.slice) if self.slice else 1

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        if self.server is not None:
            return [self.server] * len(sizes)
        return self.spread(sizes, holders)


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Fields of Servers; the last word that says something of a field holds."""
    fields: dict[str, Any] = {}
    for option in options:
        name, _, number = option.partition("=")
        if name == "slice" and not int(number):
            raise UnreadableOption(option)
        if number:
            fields["slice" if name == "slice" else "staleness"] = int(number)
        else:
            fields.update({"server": int(option)} if option.isdigit() else _OPTION_FIELDS[option])
    return fields


def _parse(options: Sequence[str]) -> Sync:
    return Servers(**parse_options(options))


KIND = SyncKind(
    "ps", (*PLACEMENT_OPTIONS, "whole", "sliced", f"slice={NUMBER}", "sync", "async", f"ssp={NUMBER}"),
    ("ps", "ps:sliced,greedy", "ps:one,async", "ps:ssp=2"), _parse,
)  # fmt: skip
