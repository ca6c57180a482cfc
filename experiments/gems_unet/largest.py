"""The largest size that fits: a guess by a line through what is known, then steps until it is between."""

from __future__ import annotations

from collections.abc import Callable


def largest_fitting(
    peak: Callable[[int], int], capacity: int, *, unit: int, power: int, max_size: int
) -> tuple[int, int]:
    """The largest multiple of `unit` whose peak fits into `room`, up to `most`, and that peak.

    Peaks grow with the size; about as size^power, which guesses alone depend on: the answer fits, and the
    next multiple does not, or is beyond `most`. 0 where not even one unit fits.
    """
    peaks: dict[int, int] = {0: 0}

    def fits(n: int) -> bool:
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
    """Where the line through the two measured sizes that are nearest to the room meets it."""
    near = sorted((abs(p - capacity), n) for n, p in peaks.items() if n)[:2]
    if len(near) < 2:
        (_, n), other = near[0], 0
    else:
        n, other = near[0][1], near[1][1]
    a, b = n**power, other**power
    slope = (peaks[n] - peaks[other]) / (a - b)
    if slope <= 0:
        return (low + high) // 2
    wanted = a + (capacity - peaks[n]) / slope
    estimate = int(max(0.0, wanted) ** (1 / power))
    # once low is the line's own guess, what is left to see is whether the next one fits
    return estimate if estimate > low else low + 1
