"""Stores rows in tables that only grow, with a cache, so that a changed plan adds only new rows.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

A row is one piece of a plan's work, for example (device, nanoseconds) of a computation, or source, target
and nanoseconds of a message; arrays.Arena lists the columns. A slot says which rows belong together: (first
row, number of rows).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from raddle.simulation.fast.arrays import SYNC_COLUMNS, Arena

Array = np.ndarray
Slot = tuple[int, int]  # first row, number of rows
NOTHING: Slot = (0, 0)  # the empty slot
Result = TypeVar("Result")


class RowArray:
    """A two-dimensional array that grows by rows."""

    def __init__(self, columns: int) -> None:
        self.data = np.zeros((1024, columns), np.int64)
        self.used = 0

    def add(self, rows: Array) -> Slot:
        """Appends rows; returns their slot."""
        count = len(rows)
        if not count:
            return NOTHING
        if self.used + count > len(self.data):
            grown = np.zeros(
                (max(2 * len(self.data), self.used + count), self.data.shape[1]), np.int64
            )
            grown[: self.used] = self.data[: self.used]
            self.data = grown
        first = self.used
        self.data[first : first + count] = rows
        self.used += count
        return first, count

    @property
    def nbytes(self) -> int:
        """The bytes of the rows that were added."""
        return self.used * self.data.shape[1] * 8  # 8 bytes in an int64


class RowStore:
    """All rows (their columns: arrays.Arena), and a cache of results that depend on a key.

    look: is called before a result is built; it may raise an exception.
    """

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        self.look = look
        # sync_units: whole parameters, or slices of them, that are synchronised at once; amounts: bytes of
        # a sync unit for each ring; sizes: (device, bytes in memory); members: the parameters of bundles,
        # which are slices of several parameters that are synchronised together.
        self.computes, self.messages, self.amounts = RowArray(2), RowArray(8), RowArray(3)
        self.sync_units, self.sizes = RowArray(SYNC_COLUMNS), RowArray(2)
        self.members = RowArray(1)
        self._cache: dict[Any, Any] = {}

    def cached(self, key: Any, build: Callable[[], Result]) -> Result:
        """Returns the result of `build()`, which is called only once for each key."""
        if key not in self._cache:
            self.look()
            self._cache[key] = build()
        return self._cache[key]  # type: ignore[no-any-return]

    def arena(self) -> Arena:
        """Returns the tables that the JIT-compiled functions read: all except `sizes`."""
        return Arena(
            self.computes.data,
            self.messages.data,
            self.amounts.data,
            self.sync_units.data,
            self.members.data,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the two largest tables."""
        return self.computes.nbytes + self.messages.nbytes
