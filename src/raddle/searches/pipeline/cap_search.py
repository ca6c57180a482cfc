"""Finds the list of pipeline stages with the shortest step, by branch and bound on the slowest stage.

shortest_step.py calls it. A *solution* is a list of stages. `largest` is the seconds of its slowest stage,
`sum` the seconds of all its stages, all-reduces and transfers, and `repeats` the number of micro-batches
less one. The *total*, `repeats * largest + sum`, is the estimated time of a step; it is minimised. A *cap*
is an upper limit for `largest`.

The caller gives `solve(cap)`: the solution with the smallest sum among those whose largest is at most cap.
No solution with largest <= cap has a smaller sum. So every solution with low < largest < high has a total
of at least repeats * low + (smallest sum for a cap of high). An interval of caps is dropped when this bound
is no better than the best total so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

Solution = TypeVar("Solution")
RELATIVE_TOLERANCE = 1e-12  # values whose relative difference is smaller count as equal


@dataclass(frozen=True)
class CappedOptimum(Generic[Solution]):
    """The solution with the smallest sum under a cap on `largest`."""

    largest: float  # seconds
    sum: float  # seconds
    solution: Solution


class Interval(NamedTuple):
    """An open interval of values of `largest` that may still hold a better solution."""

    bound: float  # lower bound of the total in the interval; the heap pops the smallest bound first
    low: float
    high: float
    least_sum: float  # lower bound of the sum in the interval
    halve: bool  # the next cap to try is the middle; if False, just below `high`


def least_total(
    solve: Callable[[float], CappedOptimum[Solution] | None],
    repeats: int,
    *,
    low: float,
    high: float,
    expired: Callable[[], bool] = lambda: False,
) -> CappedOptimum[Solution] | None:
    """Return the solution with the smallest total, or None if there is no solution.

    low, high: `largest` of every solution is above low; a cap of high excludes no solution.
    expired: whether the time of the search is used up; the best solution so far is then returned.
    """

    def total(x: CappedOptimum[Solution]) -> float:
        """Return the value to minimise."""
        return repeats * x.largest + x.sum

    def interval_below(low: float, upper: CappedOptimum[Solution], halve: bool) -> Interval:
        """Return the interval from low to the largest of a capped optimum."""
        # Below the largest of a capped optimum, no solution has a smaller sum than the optimum.
        return Interval(repeats * low + upper.sum, low, upper.largest, upper.sum, halve)

    best = solve(high)
    if not best or not repeats:
        return best
    intervals = [interval_below(low, best, halve=False)]
    cap = 1.05 * low
    # Start just above the lower bound, and raise the cap by a fifth until there is a solution: `solve` is
    # faster for small caps.
    while cap < best.largest and not expired():
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
    while intervals and not expired():
        _, low, high, least_sum, halve = current = heappop(intervals)
        # With a `largest` above this, no total is smaller than the best one.
        high = min(high, (total(best) - least_sum) / repeats)
        if current.bound >= total(best) * (1 - RELATIVE_TOLERANCE) or low >= high * (
            1 - RELATIVE_TOLERANCE
        ):
            continue
        # If `halve` is False, the cap allows every solution of the interval: if there is none, the interval
        # is dropped.
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
