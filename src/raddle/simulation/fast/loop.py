"""simulation/engine.py on stretches and messages, compiled; it stops as soon as a limit is sure to pass.

It is a loop of its own, with the engine's heap and ranks, because what follows a task may start inside of a
stretch, before that ends, and because most plans of a search are given up half way. Tests hold it to the
engine, to the nanosecond.

`limit` is the longest time that is of interest: the run is given up as soon as it is certain to take
longer, because some resource has more left to do than there is time.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.simulation.engine import TASK_MASK, _heap_key, _pop, _push
from raddle.simulation.fast.arrays import (
    DEVICE,
    DONE,
    DURATION,
    FIRST,
    SECOND,
    URGENCY,
    Array,
    Space,
)

LONGER = -1  # than the limit


@njit(cache=True)
def run(
    devices: int, nodes: int, edges: int, space: Space, load: Array, tails: Array, limit: int,
    counts: Array,
) -> int:  # fmt: skip
    """Nanoseconds until all has ended, or LONGER; counts[2] becomes the nodes that were simulated."""
    pointer = np.zeros(nodes + 1, np.int32)
    left = np.zeros(nodes, np.int32)
    node_of, edge_of = space.nodes, space.edges
    for e in range(edges):
        pointer[edge_of[e, 0] + 1] += 1
        left[edge_of[e, 1]] += 1
    for n in range(nodes):
        pointer[n + 1] += pointer[n]
    place = pointer.copy()
    successor = np.empty(edges, np.int32)
    after = np.empty(edges, np.int64)
    for e in range(edges):
        k = place[edge_of[e, 0]]
        place[edge_of[e, 0]] += 1
        successor[k], after[k] = edge_of[e, 1], edge_of[e, 2]
    ready = np.zeros(nodes, np.int64)
    free = np.zeros(len(load), np.int64)
    rest = load.copy()
    heap_time = np.empty(nodes + 1, np.int64)
    heap_node = np.empty(nodes + 1, np.int64)  # urgency, then the node
    stack = np.empty(nodes + 1, np.int32)  # ready nodes that hold nothing
    size, depth, total, count = 0, 0, 0, 0
    for n in range(nodes):
        if left[n] == 0:
            if node_of[n, FIRST] < 0 and node_of[n, SECOND] < 0:
                stack[depth] = n
                depth += 1
            else:
                size = _push(heap_time, heap_node, size, 0, _heap_key(node_of[n, URGENCY], n))
    while size or depth:
        if depth:
            depth -= 1
            node = stack[depth]
        else:
            node = heap_node[0] & TASK_MASK
            now = heap_time[0]
            size = _pop(heap_time, heap_node, size)
            if node_of[node, URGENCY]:
                free_at = now
                for resource in (node_of[node, FIRST], node_of[node, SECOND]):
                    if resource >= 0 and free[resource] > free_at:
                        free_at = free[resource]
                if free_at > now:  # looks again then, with all others that wait
                    rank = _heap_key(node_of[node, URGENCY], node)
                    size = _push(heap_time, heap_node, size, free_at, rank)
                    continue
        count += 1
        begin = ready[node]
        duration, first, second = (
            node_of[node, DURATION],
            node_of[node, FIRST],
            node_of[node, SECOND],
        )
        if first >= 0 and free[first] > begin:
            begin = free[first]
        if second >= 0 and free[second] > begin:
            begin = free[second]
        finish = begin + duration
        if first >= 0:
            free[first] = finish
            rest[first] -= duration
            if finish + rest[first] > limit:
                counts[2] = count
                return LONGER
        if second >= 0:
            free[second] = finish
            rest[second] -= duration
            if finish + rest[second] > limit:
                counts[2] = count
                return LONGER
        d = node_of[node, DEVICE]
        if d >= 0:
            ready[node] = begin  # kept for the tails
            if begin + load[d] - node_of[node, DONE] > limit:
                counts[2] = count
                return LONGER
        total = max(total, finish)
        for k in range(pointer[node], pointer[node + 1]):
            other = successor[k]
            ready[other] = max(ready[other], finish + after[k])
            left[other] -= 1
            if left[other] == 0:
                if node_of[other, FIRST] < 0 and node_of[other, SECOND] < 0:
                    stack[depth] = other
                    depth += 1
                else:
                    rank = _heap_key(node_of[other, URGENCY], other)
                    size = _push(heap_time, heap_node, size, ready[other], rank)
    counts[2] = count
    for d in range(devices):
        total = max(total, ready[tails[d, 0]] + tails[d, 1])
    return LONGER if total > limit else total
