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
    compressed: str = ""  # the type in which gradients travel

    bucketed: ClassVar[bool] = False  # gradients are all-reduced in buckets, and all holders update
    inline: ClassVar[bool] = (
        False  # messages and updates stand in the program's order, not beside it
    )
    divided: ClassVar[bool] = (
        False  # rows are at their homes alone, and elsewhere while they are used
    )
    collective: ClassVar[bool] = (
        False  # slices have no homes: all-reduced, in one order of all ranks
    )
    urgent: ClassVar[bool] = False  # the most urgent slice first, and no barrier after a step

    @property
    def homes(self) -> bool:
        """Whether parameters are updated at a home, not on every holder."""
        return not self.bucketed and not self.collective

    @property
    def sliced(self) -> bool:
        """Whether slices are summed and updated one by one, while others compute."""
        return not self.bucketed and not self.inline

    @property
    def synchronous(self) -> bool:
        return self.staleness == 0

    @property
    def overlaps(self) -> bool:
        """Whether a step may begin before the one before has updated its parameters."""
        return False

    def rows(self, shape: Sequence[int], holders: int) -> list[tuple[int, int]]:
        """Slices of a tensor as ranges of rows; one if it has no rows."""
        if not shape or not shape[0]:
            return [(0, 1)] if not shape else []
        rows, elements = shape[0], 1
        for extent in shape:
            elements *= extent
        pieces = min(rows, self.pieces(elements, holders))
        cuts = [rows * i // pieces for i in range(pieces + 1)]
        return [(a, b) for a, b in pairwise(cuts)]

    @abstractmethod
    def pieces(self, elements: int, holders: int) -> int:
        """Slices of a tensor with so many elements on so many devices, if it has as many rows."""

    @abstractmethod
    def assign(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        """By slice, its home: one of its holders, or the server; -1 where all holders update it."""

    def home(self, holders: Sequence[int]) -> int:
        """The home of a share before it is cut into slices; -1 if it has none."""
        return -1 if self.server is None else self.server


@dataclass(frozen=True)
class Kind:
    """How ways of a kind are written: a name, and words that may follow it.

    `read` makes a way of the words, all of which match a pattern of `words`; it raises Unreadable for
    words that do not go together.
    """

    name: str
    words: tuple[str, ...]
    examples: tuple[str, ...]
    read: Callable[[Sequence[str]], Sync]


class Unreadable(Exception):
    """A word that does not belong where it stands."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


def at_most_one(words: Sequence[str]) -> None:
    if len(words) > 1:
        raise Unreadable(words[1])
