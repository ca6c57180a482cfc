"""Converts seconds to integer nanoseconds, the unit of all simulated times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.errors import InputError

Array = np.ndarray
MAX_SECONDS = 4e9  # as nanoseconds, this is less than half of the range of int64


def nanoseconds(seconds: Sequence[float], *, minimum: int = 1) -> Array:
    """Rounds seconds to an array of integer nanoseconds.

    Times below `minimum` become `minimum`: a task that occupies a device or a link always takes some time.
    """
    values = np.asarray(seconds, np.float64)
    if not (values <= MAX_SECONDS).all():
        raise InputError(
            f"a task would take {values.max():g} s: look for a wrong number in the cluster or the profile."
        )
    return np.maximum(minimum, np.rint(values * 1e9)).astype(np.int64)
