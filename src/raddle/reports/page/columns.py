"""Numbers for the page, small: each column as bytes that compress well, all columns in one block.

A column is stored less its smallest value, in as few bytes a number as it needs: first all lowest bytes,
then the next ones. `delta` stores differences, for numbers that rise. Equal columns are stored once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


class Columns:
    """Collects columns; what `add` returns is where the page finds one."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._offsets: dict[bytes, int] = {}
        self._size = 0

    def add(self, values: Any, *, delta: bool = False) -> dict[str, int]:
        """`at`, `n`, `width` (bytes a number), `least`, and `delta` (0 or 1)."""
        numbers = np.asarray(values, np.int64)
        if delta and len(numbers):
            numbers = np.concatenate([numbers[:1], np.diff(numbers)])
        least = int(numbers.min(initial=0))
        span = int(numbers.max(initial=0)) - least
        width = max(1, -(-span.bit_length() // 8))
        rows = (numbers - least).astype("<u8").view(np.uint8).reshape(-1, 8)
        at = self._offset_of(np.ascontiguousarray(rows[:, :width].T).tobytes())
        return {"at": at, "n": len(numbers), "width": width, "least": least, "delta": int(delta)}

    def _offset_of(self, block: bytes) -> int:
        if block not in self._offsets:
            self._offsets[block] = self._size
            self._blocks.append(block)
            self._size += len(block)
        return self._offsets[block]

    def tobytes(self) -> bytes:
        return b"".join(self._blocks)


def read_column(block: bytes, column: dict[str, int]) -> Array:
    """What the page does with a column."""
    n, width = column["n"], column["width"]
    planes = np.frombuffer(block, np.uint8, n * width, column["at"]).reshape(width, n)
    numbers = np.zeros(n, np.int64)
    for number, plane in enumerate(planes):
        numbers += plane.astype(np.int64) << (8 * number)
    numbers += column["least"]
    return np.cumsum(numbers) if column["delta"] else numbers
