"""Rows of compute, messages and amounts, kept once and pointed to: a move adds only what is new."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
Slot = tuple[int, int]  # first row, number of rows
NOTHING: Slot = (0, 0)


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
