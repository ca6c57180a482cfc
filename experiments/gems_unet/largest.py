"""The largest size that fits: a guess by a line through what is known, then steps until it is between."""

from __future__ import annotations

from collections.abc import Callable


def largest(
    peak: Callable[[int], int], room: int, *, unit: int, power: int, most: int
) -> tuple[int, int]:
    """The largest multiple of `unit` whose peak fits into `room`, up to `most`, and that peak.

    Peaks grow with the size; about as size^power, which guesses alone depend on: the answer fits, and the
    next multiple does not, or is beyond `most`. 0 where not even one unit fits.
    """
    known: dict[int, int] = {0: 0}

    def fits(n: int) -> bool:
        if n not in known:
            known[n] = peak(n * unit)
        return known[n] <= room

    top = most // unit
    low, high = 0, top + 1  # low fits, high does not
    guess = max(1, top // 4)
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        if fits(guess):
            low = guess
        else:
            high = guess
        guess = _guess(known, room, power, low, high)
    return low * unit, known[low]


def _guess(known: dict[int, int], room: int, power: int, low: int, high: int) -> int:
    """Where the line through the two measured sizes that are nearest to the room meets it."""
    near = sorted((abs(p - room), n) for n, p in known.items() if n)[:2]
    if len(near) < 2:
        (_, n), other = near[0], 0
    else:
        n, other = near[0][1], near[1][1]
    a, b = n**power, other**power
    slope = (known[n] - known[other]) / (a - b)
    if slope <= 0:
        return (low + high) // 2
    wanted = a + (room - known[n]) / slope
    found = int(max(0.0, wanted) ** (1 / power))
    # once low is the line's own guess, what is left to see is whether the next one fits
    return found if found > low else low + 1
