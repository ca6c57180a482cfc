"""Starts the sums of slices in a given order, although their gradients are completed in another.

Where slices are summed in bundles (bundle.py), a number below is that of a bundle.

All ranks have to start their all-reduces in the same order. So a slice whose gradient is complete waits
until all slices before it have been started. With the order 2 0 1, first 0 is complete, then 1 and 2:

    complete   0    -> start: nothing
    complete   1 2  -> start: 2 0 1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Turns:
    """The slices that wait for their turn. Without an order, each starts as soon as it is complete."""

    def __init__(self, order: Sequence[int] = ()) -> None:
        self._order, self._next = order, 0
        self._complete: dict[int, None] = {}  # complete and not started; a set that keeps its order

    def complete(self, numbers: Iterable[int]) -> list[int]:
        """Adds slices whose gradients are complete; returns the slices to start now, in order."""
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
        """The slices that are complete and not started."""
        return list(self._complete)
