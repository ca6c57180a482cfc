"""Runs the event loop of the fast simulation, JIT-compiled: simulation/engine.py for nodes of a StepDag.

A node is a stretch (a series of tasks that a device computes without waiting, nodes.py), a task, a
message, a member of an all-reduce, or a join (which waits for several of these). The loop differs from the
engine in two ways. A message may start inside a stretch, before the stretch ends: edges have a delay. And
the loop stops early: `limit` is the longest time of interest, and the loop gives up as soon as some
resource has more work left than time until the limit. So searches reject most plans early. Tests check
that both loops agree to the nanosecond.
"""

# n: node, e: edge, k: place in `successor`, d: device

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.simulation.fast.arrays import (
    BUSY_BEFORE,
    DEVICE,
    DURATION,
    FIRST_RESOURCE,
    LATENCY,
    SECOND_RESOURCE,
    URGENCY,
    Array,
    StepDag,
)
from raddle.simulation.waiting import add_ready, nobody_waits, take_next

OVER_LIMIT = -1  # result: the step takes longer than the limit


@njit(cache=True)
def run_dag(
    devices: int, node_count: int, edge_count: int, dag: StepDag, load: Array, tails: Array, limit: int,
    counts: Array,
) -> int:  # fmt: skip
    """Returns the nanoseconds until all nodes have ended, or OVER_LIMIT.

    load: by resource, its total busy nanoseconds; tails: by device, its last stretch and the nanoseconds in
    it; counts[2] is set to the number of simulated nodes.
    """
    # successors of node n are successor[pointer[n]:pointer[n + 1]], with their delays in `delay`
    pointer = np.zeros(node_count + 1, np.int32)
    waits_left = np.zeros(node_count, np.int32)  # by node: how many others it still waits for
    nodes, edges = dag.nodes, dag.edges
    for e in range(edge_count):
        pointer[edges[e, 0] + 1] += 1
        waits_left[edges[e, 1]] += 1
    for n in range(node_count):
        pointer[n + 1] += pointer[n]
    next_free = pointer.copy()
    successor = np.empty(edge_count, np.int32)
    delay = np.empty(edge_count, np.int64)
    for e in range(edge_count):
        k = next_free[edges[e, 0]]
        next_free[edges[e, 0]] += 1
        successor[k], delay[k] = edges[e, 1], edges[e, 2]
    ready = np.zeros(node_count, np.int64)  # by node: when all that it waits for has ended
    load_left = load.copy()  # by resource: nanoseconds of work that has not started
    durations, latencies, urgencies = nodes[:, DURATION], nodes[:, LATENCY], nodes[:, URGENCY]
    firsts, seconds = nodes[:, FIRST_RESOURCE], nodes[:, SECOND_RESOURCE]
    waiting = nobody_waits(node_count, len(load))
    stack = np.empty(node_count + 1, np.int32)  # ready nodes without resources
    # depth: of the stack; total: the latest end so far; count: simulated nodes
    depth, total, count = 0, 0, 0
    for n in range(node_count):
        if waits_left[n] == 0:
            if firsts[n] < 0 and seconds[n] < 0:
                stack[depth] = n
                depth += 1
            else:
                add_ready(waiting, 0, urgencies[n], n)
    while True:
        if depth:
            depth -= 1
            node = int(stack[depth])
            begin = ready[node]
        else:
            node, begin, _ = take_next(waiting, durations, firsts, seconds, urgencies)
            if node < 0:
                break
        count += 1
        duration, first, second = durations[node], firsts[node], seconds[node]
        finish = begin + duration
        if first >= 0:
            load_left[first] -= duration
            if finish + load_left[first] > limit:
                counts[2] = count
                return OVER_LIMIT
        if second >= 0:
            load_left[second] -= duration
            if finish + load_left[second] > limit:
                counts[2] = count
                return OVER_LIMIT
        d = nodes[node, DEVICE]
        if d >= 0:
            ready[node] = begin  # the start of a stretch, for `tails`
            # The device has more to compute from this stretch on than time until the limit.
            if begin + load[d] - nodes[node, BUSY_BEFORE] > limit:
                counts[2] = count
                return OVER_LIMIT
        finish += latencies[node]  # when a message has arrived
        total = max(total, finish)
        for k in range(pointer[node], pointer[node + 1]):
            other = successor[k]
            ready[other] = max(ready[other], finish + delay[k])
            waits_left[other] -= 1
            if waits_left[other] == 0:
                if firsts[other] < 0 and seconds[other] < 0:
                    stack[depth] = other
                    depth += 1
                else:
                    add_ready(
                        waiting,
                        ready[other],
                        urgencies[other],
                        other,
                    )
    counts[2] = count
    for d in range(devices):
        total = max(total, ready[tails[d, 0]] + tails[d, 1])
    return OVER_LIMIT if total > limit else total
