"""The time of a transfer on a link: one formula for numbers, NumPy arrays and numba-compiled functions."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable


@register_jitable
def transfer_seconds(latency: Any, bandwidth: Any, nbytes: Any) -> Any:
    """Seconds of a message; latency in seconds, bandwidth in bytes/s."""
    return latency + nbytes / bandwidth
