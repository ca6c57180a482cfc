"""Finds the largest size whose peak memory fits a capacity, with few evaluations.

The interval between a size that fits (low) and one that does not (high) is narrowed; each guess is inter-
or extrapolated from the peaks evaluated so far.
"""

from __future__ import annotations

from collections.abc import Callable


def largest_fitting(
    peak: Callable[[int], int], capacity: int, *, unit: int, power: int, max_size: int
) -> tuple[int, int]:
    """Returns the largest multiple of `unit` up to `max_size` whose peak fits `capacity`, and its peak.

    peak(size): peak bytes, for a size in pixels or images (not in units).
    Peaks must grow with the size. Growth close to size^power makes the guesses good; the result is exact
    anyway: it fits, and the next multiple does not, or is beyond `max_size`.
    Returns (0, 0) if even one unit does not fit.
    """
    peaks: dict[int, int] = {0: 0}  # size in units -> peak bytes; below, all sizes are in units

    def fits(n: int) -> bool:
        """Whether a size of n units fits; each size is evaluated once."""
        if n not in peaks:
            peaks[n] = peak(n * unit)
        return peaks[n] <= capacity

    top = max_size // unit
    low, high = 0, top + 1  # low fits, high does not
    guess = max(1, top // 4)
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        if fits(guess):
            low = guess
        else:
            high = guess
        guess = _guess(peaks, capacity, power, low, high)
    return low * unit, peaks[low]


def _guess(peaks: dict[int, int], capacity: int, power: int, low: int, high: int) -> int:
    """Returns the size at which the peak is expected to reach the capacity.

    The expectation is a line (in size^power) through the two peaks nearest to the capacity.
    """
    # (distance from the capacity, size) of the two nearest
    near = sorted((abs(p - capacity), n) for n, p in peaks.items() if n)[:2]
    if len(near) < 2:
        (_, nearest), second = near[0], 0
    else:
        nearest, second = near[0][1], near[1][1]
    a, b = nearest**power, second**power
    slope = (peaks[nearest] - peaks[second]) / (a - b)
    if slope <= 0:
        return (low + high) // 2
    wanted = a + (capacity - peaks[nearest]) / slope
    estimate = int(max(0.0, wanted) ** (1 / power))
    # `low` fits already: if the estimate is not above it, try the next size
    return estimate if estimate > low else low + 1
