"""Random numbers of a walk's own, for compiled code: numba has one generator for all."""

from __future__ import annotations

import numpy as np
from numba import njit

Array = np.ndarray


@njit(cache=True)
def random_below(rng_state: Array, n: int) -> int:
    """A number below n, by splitmix64, whose state is random[0]."""
    rng_state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng_state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    number: int = np.int64(z >> np.uint64(33)) % n  # type: ignore[assignment]
    return number
