"""The time of a message between two devices: formulas for numbers, NumPy arrays and numba's functions.

A message occupies its links for bytes / bandwidth. It arrives a latency later. Meanwhile it is in flight,
and the links are free for other messages. Latency in seconds, bandwidth in bytes/s.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable


@register_jitable
def occupied_seconds(bandwidth: Any, nbytes: Any) -> Any:
    """Returns the seconds for which a message occupies its links."""
    return nbytes / bandwidth


@register_jitable
def transfer_seconds(latency: Any, bandwidth: Any, nbytes: Any) -> Any:
    """Returns the seconds from the start of a message until it has arrived."""
    return latency + occupied_seconds(bandwidth, nbytes)
