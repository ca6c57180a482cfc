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
    BUSY_BEFORE,
    DEVICE,
    DURATION,
    FIRST_RESOURCE,
    SECOND_RESOURCE,
    URGENCY,
    Array,
    StepDag,
)

OVER_LIMIT = -1  # than the limit


@njit(cache=True)
def run_dag(
    devices: int, node_count: int, edge_count: int, dag: StepDag, load: Array, tails: Array, limit: int,
    counts: Array,
) -> int:  # fmt: skip
    """Nanoseconds until all has ended, or LONGER; counts[2] becomes the nodes that were simulated."""
    pointer = np.zeros(node_count + 1, np.int32)
    waits_left = np.zeros(node_count, np.int32)
    nodes, edges = dag.nodes, dag.edges
    for e in range(edge_count):
        pointer[edges[e, 0] + 1] += 1
        waits_left[edges[e, 1]] += 1
    for n in range(node_count):
        pointer[n + 1] += pointer[n]
    next_slot = pointer.copy()
    successor = np.empty(edge_count, np.int32)
    delay = np.empty(edge_count, np.int64)
    for e in range(edge_count):
        k = next_slot[edges[e, 0]]
        next_slot[edges[e, 0]] += 1
        successor[k], delay[k] = edges[e, 1], edges[e, 2]
    ready = np.zeros(node_count, np.int64)
    free_from = np.zeros(len(load), np.int64)
    load_left = load.copy()
    heap_time = np.empty(node_count + 1, np.int64)
    heap_node = np.empty(node_count + 1, np.int64)  # urgency, then the node
    stack = np.empty(node_count + 1, np.int32)  # ready nodes that hold nothing
    size, depth, total, count = 0, 0, 0, 0
    for n in range(node_count):
        if waits_left[n] == 0:
            if nodes[n, FIRST_RESOURCE] < 0 and nodes[n, SECOND_RESOURCE] < 0:
                stack[depth] = n
                depth += 1
            else:
                size = _push(heap_time, heap_node, size, 0, _heap_key(nodes[n, URGENCY], n))
    while size or depth:
        if depth:
            depth -= 1
            node = stack[depth]
        else:
            node = heap_node[0] & TASK_MASK
            now = heap_time[0]
            size = _pop(heap_time, heap_node, size)
            if nodes[node, URGENCY]:
                free_at = now
                for resource in (nodes[node, FIRST_RESOURCE], nodes[node, SECOND_RESOURCE]):
                    if resource >= 0 and free_from[resource] > free_at:
                        free_at = free_from[resource]
                if free_at > now:  # looks again then, with all others that wait
                    rank = _heap_key(nodes[node, URGENCY], node)
                    size = _push(heap_time, heap_node, size, free_at, rank)
                    continue
        count += 1
        begin = ready[node]
        duration, first, second = (
            nodes[node, DURATION],
            nodes[node, FIRST_RESOURCE],
            nodes[node, SECOND_RESOURCE],
        )
        if first >= 0 and free_from[first] > begin:
            begin = free_from[first]
        if second >= 0 and free_from[second] > begin:
            begin = free_from[second]
        finish = begin + duration
        if first >= 0:
            free_from[first] = finish
            load_left[first] -= duration
            if finish + load_left[first] > limit:
                counts[2] = count
                return OVER_LIMIT
        if second >= 0:
            free_from[second] = finish
            load_left[second] -= duration
            if finish + load_left[second] > limit:
                counts[2] = count
                return OVER_LIMIT
        d = nodes[node, DEVICE]
        if d >= 0:
            ready[node] = begin  # kept for the tails
            if begin + load[d] - nodes[node, BUSY_BEFORE] > limit:
                counts[2] = count
                return OVER_LIMIT
        total = max(total, finish)
        for k in range(pointer[node], pointer[node + 1]):
            other = successor[k]
            ready[other] = max(ready[other], finish + delay[k])
            waits_left[other] -= 1
            if waits_left[other] == 0:
                if nodes[other, FIRST_RESOURCE] < 0 and nodes[other, SECOND_RESOURCE] < 0:
                    stack[depth] = other
                    depth += 1
                else:
                    rank = _heap_key(nodes[other, URGENCY], other)
                    size = _push(heap_time, heap_node, size, ready[other], rank)
    counts[2] = count
    for d in range(devices):
        total = max(total, ready[tails[d, 0]] + tails[d, 1])
    return OVER_LIMIT if total > limit else total
