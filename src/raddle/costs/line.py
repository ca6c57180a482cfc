"""The time of a collective algorithm as a line: a linear function of the number of bytes."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """The seconds of an algorithm for some number of bytes: fixed + per_byte × bytes."""

    fixed: float  # seconds
    per_byte: float  # seconds per byte
