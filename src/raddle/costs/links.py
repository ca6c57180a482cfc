"""Seconds that something takes on a link: the one formula, for numbers, arrays and compiled code alike."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable


@register_jitable
def transfer_seconds(latency: Any, bandwidth: Any, nbytes: Any) -> Any:
    """What a message of so many bytes takes."""
    return latency + nbytes / bandwidth
