"""Seconds as whole nanoseconds, in which everything is simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.errors import InputError

Array = np.ndarray
MAX_SECONDS = 4e9  # seconds, in nanoseconds less than half of 64 bits


def nanoseconds(seconds: Sequence[float], *, minimum: int = 1) -> Array:
    """At least one: a task on a resource takes time."""
    values = np.asarray(seconds, np.float64)
    if not (values <= MAX_SECONDS).all():
        raise InputError(
            f"a task would take {values.max():g} s: look for a wrong figure in the cluster or the profile."
        )
    return np.maximum(minimum, np.rint(values * 1e9)).astype(np.int64)
