"""Seconds as whole nanoseconds, in which everything is simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.errors import InputError

Array = np.ndarray
LONGEST = 4e9  # seconds, in nanoseconds less than half of 64 bits


def nanoseconds(seconds: Sequence[float], *, least: int = 1) -> Array:
    """At least one: a task on a resource takes time."""
    given = np.asarray(seconds, np.float64)
    if not (given <= LONGEST).all():
        raise InputError(
            f"a task would take {given.max():g} s: look for a wrong figure in the cluster or the profile."
        )
    return np.maximum(least, np.rint(given * 1e9)).astype(np.int64)
