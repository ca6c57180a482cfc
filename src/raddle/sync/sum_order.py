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


def urgent_first(
    ready: Sequence[float], seconds: Sequence[float], urgency: Sequence[int]
) -> list[int]:
    """Numbers in the order in which they go; `ready` are moments, the smaller urgency goes first."""
    coming = [(moment, urgency[i], i) for i, moment in enumerate(ready)]
    heapify(coming)
    here: list[tuple[int, int]] = []  # urgency, number
    free, order = 0.0, list[int]()
    while coming or here:
        if not here:
            free = max(free, coming[0][0])
        while coming and coming[0][0] <= free:
            _, rank, i = heappop(coming)
            heappush(here, (rank, i))
        _, i = heappop(here)
        order.append(i)
        free += seconds[i]
    return order
