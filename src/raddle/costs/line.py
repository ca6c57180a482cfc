"""The time of a collective algorithm as a line: a linear function of the number of bytes.

For example, 5 us + 0.1 ns per byte is Line(5e-6, 1e-10). A collective takes the fastest of several lines
(collectives.py).
"""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """The seconds of an algorithm for some number of bytes: fixed + per_byte × bytes."""

    fixed: float  # seconds
    per_byte: float  # seconds per byte
