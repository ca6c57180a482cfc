"""A way to synchronise parameters: what the rest of the program asks of it, and how a plan writes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

NUMBER = "[0-9]{1,9}"


@dataclass(frozen=True)
class Sync(ABC):
    """How copies of a parameter agree. A kind sets what differs from these, and says who updates what."""

    server: int | None = None  # the device that updates all parameters
    staleness: int | None = 0  # steps that a worker may be ahead; None: no bound
    wire_dtype: str = ""  # the type in which gradients travel

    bucketed: ClassVar[bool] = False  # gradients are all-reduced in buckets, and all holders update
    in_order_server: ClassVar[bool] = (
        False  # messages and updates stand in the program's order, not beside it
    )
    zero3: ClassVar[bool] = (
        False  # rows are at their homes alone, and elsewhere while they are used
    )
    collective: ClassVar[bool] = (
        False  # slices have no homes: all-reduced, in one order of all ranks
    )
    by_priority: ClassVar[bool] = False  # the most urgent slice first, and no barrier after a step

    @property
    def has_servers(self) -> bool:
        """Whether parameters are updated at a home, not on every holder."""
        return not self.bucketed and not self.collective

    @property
    def sliced(self) -> bool:
        """Whether slices are summed and updated one by one, while others compute."""
        return not self.bucketed and not self.in_order_server

    @property
    def synchronous(self) -> bool:
        return self.staleness == 0

    @property
    def allows_overlap(self) -> bool:
        """Whether a step may begin before the one before has updated its parameters."""
        return False

    def row_ranges(self, shape: Sequence[int], holders: int) -> list[tuple[int, int]]:
        """Slices of a tensor as ranges of rows; one if it has no rows."""
        if not shape or not shape[0]:
            return [(0, 1)] if not shape else []
        length, elements = shape[0], 1
        for extent in shape:
            elements *= extent
        count = min(length, self.slice_count(elements, holders))
        cuts = [length * i // count for i in range(count + 1)]
        return [(a, b) for a, b in pairwise(cuts)]

    @abstractmethod
    def slice_count(self, elements: int, holders: int) -> int:
        """Slices of a tensor with so many elements on so many devices, if it has as many rows."""

    @abstractmethod
    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        """By slice, its home: one of its holders, or the server; -1 where all holders update it."""

    def region_server(self, holders: Sequence[int]) -> int:
        """The home of a share before it is cut into slices; -1 if it has none."""
        return -1 if self.server is None else self.server


@dataclass(frozen=True)
class SyncKind:
    """How ways of a kind are written: a name, and words that may follow it.

    `read` makes a way of the words, all of which match a pattern of `words`; it raises Unreadable for
    words that do not go together.
    """

    name: str
    option_patterns: tuple[str, ...]
    examples: tuple[str, ...]
    parse: Callable[[Sequence[str]], Sync]


class UnreadableOption(Exception):
    """A word that does not belong where it stands."""

    def __init__(self, option: str) -> None:
        super().__init__(option)
        self.option = option


def check_at_most_one(options: Sequence[str]) -> None:
    if len(options) > 1:
        raise UnreadableOption(options[1])
