"""Starts the sums of bundles in a given order, although their gradients are completed in another.

A bundle consists of slices of parameters that are summed together (bundle.py); raddle.sync calls it an
item.

All ranks have to start their all-reduces in the same order. So a bundle whose gradients are complete waits
until all bundles before it have been started. With the order 2 0 1, first 0 is complete, then 1 and 2:

    complete   0    -> start: nothing
    complete   1 2  -> start: 2 0 1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Turns:
    """The bundles that wait for their turn. Without an order, each starts as soon as it is complete."""

    def __init__(self, order: Sequence[int] = ()) -> None:
        self._order, self._next = order, 0
        self._complete: dict[int, None] = {}  # complete and not started; a set that keeps its order

    def complete(self, numbers: Iterable[int]) -> list[int]:
        """Adds bundles whose gradients are complete; returns the bundles to start now, in order."""
        if not self._order:
            return list(numbers)
        self._complete.update(dict.fromkeys(numbers))
        started = []
        while self._next < len(self._order) and self._order[self._next] in self._complete:
            started.append(self._order[self._next])
            del self._complete[started[-1]]
            self._next += 1
        return started

    @property
    def waiting(self) -> list[int]:
        """The bundles that are complete and not started."""
        return list(self._complete)
