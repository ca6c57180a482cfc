"""Stores columns (long lists of integers) compactly for the HTML page: all columns in one block of bytes.

The smallest value of a column is subtracted from all its numbers. They are then stored in as few bytes per
number as the column needs: first the lowest byte of each number, then the next bytes; this compresses well.
With `delta`, each number is first replaced by its difference from the number before, which is smaller where
numbers rise slowly. Equal columns are stored once.

For example, [500, 501, 503] is stored as the bytes 0, 1, 3 with the smallest value 500.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


class Columns:
    """Collects columns; `add` returns the description with which the page reads a column."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []  # the bytes of each stored column
        self._offsets: dict[bytes, int] = {}  # bytes of a column -> their offset
        self._size = 0  # bytes so far

    def add(self, values: Any, *, delta: bool = False) -> dict[str, int]:
        """Store a column and return its description.

        at: offset in the block; n: count of numbers; width: bytes per number; least: smallest value,
        which was subtracted; delta: 1 if differences are stored.
        """
        numbers = np.asarray(values, np.int64)
        if delta and len(numbers):
            numbers = np.concatenate([numbers[:1], np.diff(numbers)])
        least = int(numbers.min(initial=0))
        span = int(numbers.max(initial=0)) - least
        width = max(1, -(-span.bit_length() // 8))
        # rows[i]: the eight bytes of number i, the lowest first
        rows = (numbers - least).astype("<u8").view(np.uint8).reshape(-1, 8)
        at = self._offset_of(np.ascontiguousarray(rows[:, :width].T).tobytes())
        return {"at": at, "n": len(numbers), "width": width, "least": least, "delta": int(delta)}

    def _offset_of(self, block: bytes) -> int:
        """Store the bytes of a column if there is no equal column yet; return their offset."""
        if block not in self._offsets:
            self._offsets[block] = self._size
            self._blocks.append(block)
            self._size += len(block)
        return self._offsets[block]

    def tobytes(self) -> bytes:
        """Return the block: the bytes of all columns."""
        return b"".join(self._blocks)


def read_column(block: bytes, column: dict[str, int]) -> Array:
    """Return the numbers of a column, as the page's script decodes it; column: of `Columns.add`."""
    n, width = column["n"], column["width"]
    # planes[i]: byte i of all numbers, the lowest first
    planes = np.frombuffer(block, np.uint8, n * width, column["at"]).reshape(width, n)
    numbers = np.zeros(n, np.int64)
    for i, plane in enumerate(planes):
        numbers += plane.astype(np.int64) << (8 * i)
    numbers += column["least"]
    return np.cumsum(numbers) if column["delta"] else numbers
