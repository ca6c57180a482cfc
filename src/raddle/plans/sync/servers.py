"""`ps`: parameter servers, such as ps:distributed,sliced,greedy,ssp=2.

Options:
    D, one, distributed    one server on device D, or on device 0, or all holders are servers (default)
    whole, sliced, slice=N whole parameters (default), or slices of about N elements
    unbundled              small slices are not joined in bundles
    round-robin, greedy    how slices are assigned to distributed servers (server_assignment.py)
    sync, async, ssp=S     synchronous (default), asynchronous, or stale-synchronous: no holder is more than
                           S steps ahead of the slowest
    after                  a holder pushes when its whole backward has ended, not during it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raddle.plans.sync.server_assignment import greedy, round_robin
from raddle.plans.sync.sync_kind import AFTER, NUMBER, Sync, SyncKind, UnreadableOption, split_after

DEFAULT_SLICE = 250_000  # elements: two such slices in flight keep a link of 1 Gbit/s busy
PLACEMENT_OPTIONS = (NUMBER, "one", "distributed", "round-robin", "greedy", "unbundled")
# By option, the fields of Servers that it sets.
_OPTION_FIELDS: dict[str, dict[str, Any]] = {
    "one": {"server": 0},
    "distributed": {"server": None},
    "round-robin": {"spread": round_robin},
    "greedy": {"spread": greedy},
    "whole": {"slice": 0},
    "sliced": {"slice": DEFAULT_SLICE},
    "sync": {"staleness": 0},
    "async": {"staleness": None},
    "unbundled": {"bundled": False},
}


@dataclass(frozen=True)
class Servers(Sync):
    """Parameters or slices are updated on `server` or, if it is None, on servers that `spread` assigns."""

    slice: int = 0  # elements; 0: whole parameters
    bundled: bool = True  # small slices are joined (program/parameter_slices.py)
    # (sizes of the slices, holders of each slice) -> the server of each slice (server_assignment.py)
    spread: Callable[[Sequence[int], Sequence[Sequence[int]]], list[int]] = round_robin

    def slice_count(self, elements: int, holders: int) -> int:
        return -(-elements // self.slice) if self.slice else 1

    @property
    def bundle_limit(self) -> int:
        return bundle_limit(self.slice) if self.bundled else 0

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        if self.server is not None:
            return [self.server] * len(sizes)
        return self.spread(sizes, holders)


def bundle_limit(slice_elements: int) -> int:
    """Returns the most elements of a bundle: a quarter more than a slice, to have room for a bias."""
    return slice_elements + slice_elements // 4


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of Servers that options set; of two options for one field, the last counts."""
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
    server_options, after_backward = split_after(options)
    return Servers(**parse_options(server_options), after_backward=after_backward)


KIND = SyncKind(
    "ps", (*PLACEMENT_OPTIONS, "whole", "sliced", f"slice={NUMBER}", "sync", "async", f"ssp={NUMBER}",
     AFTER),
    ("ps", "ps:sliced,greedy", "ps:one,async", "ps:ssp=2"), _parse,
)  # fmt: skip
