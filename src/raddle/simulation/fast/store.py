"""Rows of compute, messages and amounts, kept once and pointed to: a move adds only what is new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from raddle.simulation.fast.arrays import SYNCED, Arena

Array = np.ndarray
Slot = tuple[int, int]  # first row, number of rows
NOTHING: Slot = (0, 0)
Found = TypeVar("Found")


class Rows:
    """An array that grows by rows."""

    def __init__(self, columns: int) -> None:
        self.data = np.zeros((1024, columns), np.int64)
        self.used = 0

    def add(self, rows: Array) -> Slot:
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
        return self.used * self.data.shape[1] * 8


class Store:
    """All rows (arrays.Arena has their columns), and what was found before, by what it depends on."""

    def __init__(self) -> None:
        self.computes, self.messages, self.amounts = Rows(2), Rows(7), Rows(2)
        self.synced, self.sizes = Rows(SYNCED), Rows(2)  # sizes: [row, (device, bytes)]
        self._known: dict[Any, Any] = {}

    def once(self, key: Any, find: Callable[[], Found]) -> Found:
        """What `find` gives, which is called the first time alone."""
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]  # type: ignore[no-any-return]

    def arena(self) -> Arena:
        return Arena(self.computes.data, self.messages.data, self.amounts.data, self.synced.data)

    @property
    def nbytes(self) -> int:
        return self.computes.nbytes + self.messages.nbytes
