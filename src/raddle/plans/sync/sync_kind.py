"""The base class of sync kinds, with the properties that other code asks for, and their declaration.

`Sync` is a sync kind with its options, as parsed from a plan. `SyncKind` declares how a kind is written.

A holder is a device that has a copy of a parameter, or of a region of it: a box that one set of devices
holds. A slice is a range of rows of a region. A server is the device that updates a parameter or a slice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

NUMBER = "[0-9]{1,9}"  # regular expression of a number in an option
AFTER = "after"  # the option of kinds whose gradients may be sent after the whole backward


@dataclass(frozen=True)
class Sync(ABC):
    """A way to synchronise copies of a parameter. A kind overrides the defaults from which it differs."""

    server: int | None = None  # the one device that updates all parameters, if the plan names it
    staleness: int | None = 0  # steps that a holder may be ahead of the slowest; None: no bound
    wire_dtype: str = ""  # type of gradients while they are sent, such as float16; "": their own
    # A device sends no gradient before its whole backward has ended. False: each as soon as it is complete.
    after_backward: bool = False
    # With shards: how many devices, one after the other, shard a parameter among them. Every such group has
    # the whole parameter (HSDP). 0: all holders of a parameter are one group.
    group_size: int = 0

    bucketed: ClassVar[bool] = False  # gradients are all-reduced in buckets, and all holders update
    # Whole parameters are updated on a server, with pushes and pulls in the order of the program.
    in_order_server: ClassVar[bool] = False
    # Every holder updates its shard of each parameter. Gradients are reduce-scattered and parameters
    # all-gathered, block by block (program/parameter_blocks.py).
    shards: ClassVar[bool] = False
    # A holder keeps only its shard; other rows are gathered before use and released after it.
    zero3: ClassVar[bool] = False
    # Slices have no servers: they are all-reduced, in the same order on all ranks.
    collective: ClassVar[bool] = False
    by_priority: ClassVar[bool] = False  # the most urgent slice first, and no barrier after a step

    @property
    def has_servers(self) -> bool:
        """Whether a parameter or slice is updated on a server, not on every holder."""
        return not self.bucketed and not self.collective

    @property
    def sliced(self) -> bool:
        """Whether slices are synchronised one by one, concurrently with computation."""
        return not self.bucketed and not self.in_order_server and not self.shards

    @property
    def synchronous(self) -> bool:
        return self.staleness == 0

    @property
    def allows_overlap(self) -> bool:
        """Whether asynchronous schedules may use this kind: there, steps begin before the last updates."""
        return False

    @property
    def bundle_limit(self) -> int:
        """The most elements of a bundle of neighbouring slices, which are sent together; 0: no bundles."""
        return 0

    def row_ranges(self, shape: Sequence[int], holders: int) -> list[tuple[int, int]]:
        """Divides a tensor into slices: ranges of its rows. A scalar is one slice.

        holders: how many devices hold the tensor.
        """
        if not shape or not shape[0]:
            return [(0, 1)] if not shape else []
        length, elements = shape[0], 1  # length: the number of rows
        for extent in shape:
            elements *= extent
        count = min(length, self.slice_count(elements, holders))
        cuts = [length * i // count for i in range(count + 1)]
        return [(a, b) for a, b in pairwise(cuts)]

    @abstractmethod
    def slice_count(self, elements: int, holders: int) -> int:
        """Returns into how many slices a tensor is cut, if it has enough rows.

        elements: of the tensor. holders: how many devices hold it.
        """

    @abstractmethod
    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        """Returns the server of each slice; -1 if all holders update it.

        sizes, holders: by slice, its elements and the devices that hold it.
        """

    def region_server(self, holders: Sequence[int]) -> int:
        """Returns the server of a whole region with these holders; -1 if it has none."""
        return -1 if self.server is None else self.server


@dataclass(frozen=True)
class SyncKind:
    """The declaration of a sync kind: how plans write it, as in `name:option,option`."""

    name: str
    option_patterns: tuple[str, ...]  # regular expressions of the options that may follow
    examples: tuple[str, ...]  # for error messages
    # Options, each of which matches a pattern -> Sync; UnreadableOption if they contradict each other.
    parse: Callable[[Sequence[str]], Sync]


class UnreadableOption(Exception):
    """An option that the sync kind does not have, or that does not go with the others."""

    def __init__(self, option: str) -> None:
        super().__init__(option)
        self.option = option


def split_after(options: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the options without `after`, and whether `after` was among them (`Sync.after_backward`)."""
    return [option for option in options if option != AFTER], AFTER in options


def check_at_most_one(options: Sequence[str]) -> None:
    """Raises UnreadableOption if there are two options or more."""
    if len(options) > 1:
        raise UnreadableOption(options[1])
