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

Solution = TypeVar("Solution")
RELATIVE_TOLERANCE = 1e-12  # values that differ by less than this share of them are equal


@dataclass(frozen=True)
class CappedOptimum(Generic[Solution]):
    """A solution with the least sum under a cap."""

    largest: float
    sum: float
    solution: Solution


class Interval(NamedTuple):
    """Largests between two ends, both excluded; by what their total is at least."""

    bound: float
    low: float
    high: float
    least_sum: float  # at least
    halve: bool  # or ask for the best below the upper end


def least_total(
    solve: Callable[[float], CappedOptimum[Solution] | None],
    repeats: int,
    *,
    low: float,
    high: float,
) -> CappedOptimum[Solution] | None:
    """The solution with the least total, or None where there is none; largests are above low."""

    def total(x: CappedOptimum[Solution]) -> float:
        return repeats * x.largest + x.sum

    def interval_below(low: float, smaller: CappedOptimum[Solution], halve: bool) -> Interval:
        return Interval(repeats * low + smaller.sum, low, smaller.largest, smaller.sum, halve)

    best = solve(high)
    if not best or not repeats:
        return best
    intervals = [interval_below(low, best, halve=False)]
    cap = 1.05 * low
    while cap < best.largest:  # from below, since small caps are answered sooner
        optimum = solve(cap)
        if optimum:
            intervals = [
                interval_below(low, optimum, halve=True),
                interval_below(cap, best, halve=False),
            ]
            best = min(best, optimum, key=total)
            break
        low, cap = cap, 1.2 * cap
    heapify(intervals)
    while intervals:
        _, low, high, least_sum, halve = current = heappop(intervals)
        high = min(high, (total(best) - least_sum) / repeats)
        if current.bound >= total(best) * (1 - RELATIVE_TOLERANCE) or low >= high * (
            1 - RELATIVE_TOLERANCE
        ):
            continue
        cap = (low + high) / 2 if halve else high * (1 - RELATIVE_TOLERANCE)
        optimum = solve(cap)
        if halve:
            heappush(
                intervals, Interval(repeats * cap + least_sum, cap, high, least_sum, halve=False)
            )
        if optimum:
            heappush(intervals, interval_below(low, optimum, halve=not halve))
            best = min(best, optimum, key=total)
    return best
