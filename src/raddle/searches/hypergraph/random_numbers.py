"""Generates random numbers with a state that is an array, for JIT-compiled annealing.

numba's own generator, np.random, is global; with this one each annealing run has a state of its own and is
repeatable.
"""

from __future__ import annotations

import numpy as np
from numba import njit

Array = np.ndarray


@njit(cache=True)
def random_below(rng_state: Array, n: int) -> int:
    """Returns a random integer from 0 to n - 1 by splitmix64; rng_state[0] (uint64) is its state."""
    rng_state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng_state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    number: int = np.int64(z >> np.uint64(33)) % n  # type: ignore[assignment]
    return number
