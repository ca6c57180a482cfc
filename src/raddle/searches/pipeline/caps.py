"""The least of `repeats * largest + sum`, where the least sum is known for any cap on the largest.

A cap's answer holds for all solutions up to it: none has a smaller sum. So an interval of caps can be
given up when its lower end and a sum that holds for it are together no better than what is known: branch
and bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

Found = TypeVar("Found")
EQUAL = 1e-12  # values that differ by less than this share of them are equal


@dataclass(frozen=True)
class Answer(Generic[Found]):
    """A solution with the least sum under a cap."""

    largest: float
    sum: float
    found: Found


class Interval(NamedTuple):
    """Largests between two ends, both excluded; by what their total is at least."""

    total: float
    low: float
    high: float
    sum: float  # at least
    halve: bool  # or ask for the best below the upper end


def least_total(
    answer: Callable[[float], Answer[Found] | None], repeats: int, *, low: float, high: float
) -> Answer[Found] | None:
    """The solution with the least total, or None where there is none; largests are above low."""

    def total(x: Answer[Found]) -> float:
        return repeats * x.largest + x.sum

    def interval(low: float, below: Answer[Found], halve: bool) -> Interval:
        return Interval(repeats * low + below.sum, low, below.largest, below.sum, halve)

    best = answer(high)
    if not best or not repeats:
        return best
    intervals = [interval(low, best, halve=False)]
    cap = 1.05 * low
    while cap < best.largest:  # from below, since small caps are answered sooner
        found = answer(cap)
        if found:
            intervals = [interval(low, found, halve=True), interval(cap, best, halve=False)]
            best = min(best, found, key=total)
            break
        low, cap = cap, 1.2 * cap
    heapify(intervals)
    while intervals:
        _, low, high, least, halve = part = heappop(intervals)
        high = min(high, (total(best) - least) / repeats)
        if part.total >= total(best) * (1 - EQUAL) or low >= high * (1 - EQUAL):
            continue
        cap = (low + high) / 2 if halve else high * (1 - EQUAL)
        found = answer(cap)
        if halve:
            heappush(intervals, Interval(repeats * cap + least, cap, high, least, halve=False))
        if found:
            heappush(intervals, interval(low, found, halve=not halve))
            best = min(best, found, key=total)
    return best
