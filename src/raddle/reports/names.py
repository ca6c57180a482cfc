"""Shortens lists of parameters' names for tables and pages."""

from __future__ import annotations

from collections.abc import Sequence


def names_text(names: Sequence[str]) -> str:
    """Shorten the names of a bucket's parameters: "a, b and 2 more"."""
    return (
        ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
    )
