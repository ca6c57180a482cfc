"""The time of an algorithm as a line over the bytes."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """The time of an algorithm: fixed + per_byte × bytes."""

    fixed: float  # seconds
    per_byte: float  # seconds per byte
