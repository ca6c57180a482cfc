"""Whose turn it is: sums leave in one order, whenever they become complete.

All-reduces match by the order in which ranks issue them, so what is complete waits for all that stands
before it. With the order 2 0 1, and complete are at first 0, then 1 and 2:

    complete   0    -> leaves: nothing
    complete   1 2  -> leaves: 2 0 1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Turns:
    """Without an order, each leaves as soon as it is complete."""

    def __init__(self, order: Sequence[int] = ()) -> None:
        self._order, self._next = order, 0
        self._complete: dict[int, None] = {}  # and still here, in the order in which they came

    def complete(self, numbers: Iterable[int]) -> list[int]:
        """What leaves now that these are complete too."""
        if not self._order:
            return list(numbers)
        self._complete.update(dict.fromkeys(numbers))
        leaving = []
        while self._next < len(self._order) and self._order[self._next] in self._complete:
            leaving.append(self._order[self._next])
            del self._complete[leaving[-1]]
            self._next += 1
        return leaving

    @property
    def waiting(self) -> list[int]:
        """What is complete and waits for others."""
        return list(self._complete)
