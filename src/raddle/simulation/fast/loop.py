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

from typing import NamedTuple

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
from raddle.simulation.heaps import allocates_nothing
from raddle.simulation.waiting import add_ready, nobody_waits, take_next
from raddle.simulation.waiting_queues import Waiting

OVER_LIMIT = -1  # result: the step takes longer than the limit


class NodeState(NamedTuple):
    """What the loop keeps about nodes and resources."""

    # successors of node n are successor[pointer[n]:pointer[n + 1]], with their delays in `delay`
    pointer: Array
    successor: Array
    delay: Array
    waits_left: Array  # by node: how many others it still waits for
    ready: Array  # by node: when all that it waits for has ended
    stack: Array  # ready nodes without resources
    load_left: Array  # by resource: nanoseconds of work that has not started


@njit(cache=True)
def run_dag(
    devices: int, node_count: int, edge_count: int, dag: StepDag, load: Array, tails: Array, limit: int,
    counts: Array,
) -> int:  # fmt: skip
    """Returns the nanoseconds until all nodes have ended, or OVER_LIMIT.

    load: by resource, its total busy nanoseconds; tails: by device, its last stretch and the nanoseconds in
    it; counts[2] is set to the number of simulated nodes.
    """
    state = NodeState(
        np.zeros(node_count + 1, np.int32), np.empty(edge_count, np.int32),
        np.empty(edge_count, np.int64), np.zeros(node_count, np.int32), np.zeros(node_count, np.int64),
        np.empty(node_count + 1, np.int32), load.copy(),
    )  # fmt: skip
    next_free = np.empty(node_count + 1, np.int32)
    _sort_edges(node_count, edge_count, dag.edges, state, next_free)
    waiting = nobody_waits(node_count, len(load))
    total = _run_nodes(node_count, dag.nodes, load, limit, state, waiting, counts)
    if total == OVER_LIMIT:
        return OVER_LIMIT
    for d in range(devices):
        total = max(total, state.ready[tails[d, 0]] + tails[d, 1])
    return OVER_LIMIT if total > limit else total


@allocates_nothing
def _sort_edges(
    node_count: int, edge_count: int, edges: Array, state: NodeState, next_free: Array
) -> None:
    """Sorts the edges by the node that they leave; next_free: room for a number a node."""
    pointer, waits_left = state.pointer, state.waits_left
    for e in range(edge_count):
        pointer[edges[e, 0] + 1] += 1
        waits_left[edges[e, 1]] += 1
    for n in range(node_count):
        pointer[n + 1] += pointer[n]
        next_free[n] = pointer[n]
    for e in range(edge_count):
        k = next_free[edges[e, 0]]
        next_free[edges[e, 0]] += 1
        state.successor[k], state.delay[k] = edges[e, 1], edges[e, 2]


@allocates_nothing
def _run_nodes(
    node_count: int, nodes: Array, load: Array, limit: int, state: NodeState, waiting: Waiting,
    counts: Array,
) -> int:  # fmt: skip
    """Runs all nodes; returns when the last one has ended, or OVER_LIMIT. The arguments: see `run_dag`."""
    pointer, successor, delay, waits_left, ready, stack, load_left = state
    durations, latencies, urgencies = nodes[:, DURATION], nodes[:, LATENCY], nodes[:, URGENCY]
    firsts, seconds = nodes[:, FIRST_RESOURCE], nodes[:, SECOND_RESOURCE]
    # depth: of the stack; total: the latest end so far
    depth, total = 0, 0
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
                return total
        counts[2] += 1
        duration, first, second = durations[node], firsts[node], seconds[node]
        finish = begin + duration
        if first >= 0:
            load_left[first] -= duration
            if finish + load_left[first] > limit:
                return OVER_LIMIT
        if second >= 0:
            load_left[second] -= duration
            if finish + load_left[second] > limit:
                return OVER_LIMIT
        d = nodes[node, DEVICE]
        if d >= 0:
            ready[node] = begin  # the start of a stretch, for `tails`
            # The device has more to compute from this stretch on than time until the limit.
            if begin + load[d] - nodes[node, BUSY_BEFORE] > limit:
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
                    add_ready(waiting, ready[other], urgencies[other], other)
