"""Makes the order in which a wrapped optimizer (sync.Optimizer) all-reduces its slices, once for all steps.

P3 (arXiv 1905.03960): one all-reduce runs at a time. The next one is that of the most urgent slice whose
gradient is ready. Differs from the paper: the ready times are measured once, in the first backward, so that
all ranks follow the same list. The smallest urgency goes first: 0 is the most urgent. Two examples with
three slices, whose gradients are ready after 0, 1 and 2 s:

    slice    ready at    urgency    order, if an all-reduce takes 3 s    if it takes 0 s
      0         0 s         2               first                              first
      1         1 s         1               third                              second
      2         2 s         0               second                             third
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush


def order_sums(
    ready_times: Sequence[float], seconds: Sequence[float], urgency: Sequence[int]
) -> list[int]:
    """Returns the indices of the slices in the order of their sums.

    ready_times, seconds: when each gradient is complete, and how long its sum takes. urgency: the
    smallest goes first.
    """
    upcoming = [(moment, urgency[i], i) for i, moment in enumerate(ready_times)]
    heapify(upcoming)
    ready_heap: list[tuple[int, int]] = []  # urgency, index
    # free_at: when the all-reduce that runs will end.
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
