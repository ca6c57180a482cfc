"""The static order of sums for a script of anybody's: a schedule of one channel, made once.

P3 (arXiv 1905.03960): whenever the channel is free, the most urgent of what is ready goes. Differs from
the paper: the moments are those of the first backward, so that all ranks can follow the same list. It is no
simulation (simulation/engine.py): there is one channel, and nothing waits for anything else.

    ready at   0 1 2     urgency   2 1 0     each takes 3     ->  0 2 1
    ready at   0 1 2     urgency   2 1 0     each takes 0     ->  0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush


def order_sums(
    ready_times: Sequence[float], seconds: Sequence[float], urgency: Sequence[int]
) -> list[int]:
    """Numbers in the order in which they go; `ready` are moments, the smaller urgency goes first."""
    upcoming = [(moment, urgency[i], i) for i, moment in enumerate(ready_times)]
    heapify(upcoming)
    ready_heap: list[tuple[int, int]] = []  # urgency, number
    free_at, order = 0.0, list[int]()
    while upcoming or ready_heap:
        if not ready_heap:
            free_at = max(free_at, upcoming[0][0])
        while upcoming and upcoming[0][0] <= free_at:
            _, priority, i = heappop(upcoming)
            heappush(ready_heap, (priority, i))
        _, i = heappop(ready_heap)
        order.append(i)
        free_at += seconds[i]
    return order
