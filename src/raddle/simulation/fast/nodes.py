"""Writes what devices compute and send as nodes and edges, compiled.

A device computes in the program's order, so between two arrivals that it waits for its tasks are one
stretch: what waits for a task inside of it waits for the start of the stretch and so many nanoseconds more.
What stands beside that order, such as updates of slices, slips in between any two tasks: then nothing is
folded, and every task is a node that holds its device.
"""

# d: device, s: source, t: target

from __future__ import annotations

from numba import njit

from raddle.simulation.fast.arrays import (
    DEVICE,
    DONE,
    DURATION,
    FIRST,
    SECOND,
    SEEN,
    TAKING,
    URGENCY,
    Arena,
    Array,
    Lane,
    Space,
)

NO_ROOM = -(10**9)  # for a node or an edge


@njit(cache=True, inline="always")
def node_of(
    space: Space, at: Array, duration: int, first: int, second: int, device: int, done: int
) -> int:
    node = at[0]
    nodes = space.nodes
    if node < 0 or node >= len(nodes):
        at[0] = NO_ROOM
        return 0
    nodes[node, DURATION], nodes[node, FIRST], nodes[node, SECOND] = duration, first, second
    nodes[node, DEVICE], nodes[node, DONE], nodes[node, SEEN] = device, done, 0
    nodes[node, TAKING], nodes[node, URGENCY] = 0, 0
    at[0] = node + 1
    return int(node)


@njit(cache=True, inline="always")
def edge(space: Space, at: Array, source: int, target: int, after: int) -> None:
    number = at[1]
    edges = space.edges
    if number >= len(edges):
        at[0] = NO_ROOM
    else:
        edges[number, 0], edges[number, 1], edges[number, 2] = source, target, after
        at[1] = number + 1


@njit(cache=True)
def await_arrival(space: Space, at: Array, arrival: int, d: int, lane: Lane) -> None:
    """Lets the next task of a device wait for an arrival: a new stretch begins.

    What the device has waited for once, it has; a stretch that has not computed yet waits for one more.
    """
    if arrival >= 0 and space.nodes[arrival, SEEN] == 0:
        space.nodes[arrival, SEEN] = 1
        if lane.offset[d] > 0 or space.nodes[lane.stretch[d], FIRST] >= 0:
            lane.done[d] += lane.offset[d]
            node = node_of(space, at, 0, -1, -1, d if lane.fold else -1, lane.done[d])
            edge(space, at, lane.stretch[d], node, lane.offset[d])
            lane.stretch[d], lane.offset[d] = node, 0
        edge(space, at, arrival, lane.stretch[d], 0)
        lane.taking[d] += space.nodes[arrival, TAKING]


@njit(cache=True)
def compute(space: Space, at: Array, d: int, ns: int, lane: Lane) -> None:
    """A device's next task, with what it has to take in before."""
    ns += lane.taking[d]
    lane.taking[d] = 0
    spend(space, at, d, ns, lane)
    lane.ran[d] = lane.stretch[d]


@njit(cache=True)
def spend(space: Space, at: Array, d: int, ns: int, lane: Lane) -> None:
    """So much of a device's time, after all that it has done."""
    if lane.fold:
        lane.offset[d] += ns
        lane.load[d] += ns
    elif ns > 0:
        node = beside(space, at, d, ns, lane)
        edge(space, at, lane.stretch[d], node, lane.offset[d])
        lane.stretch[d], lane.offset[d] = node, 0


@njit(cache=True)
def beside(space: Space, at: Array, d: int, ns: int, lane: Lane) -> int:
    """A task that a device does when it can."""
    lane.load[d] += ns
    return int(node_of(space, at, ns, d, -1, -1, 0))


@njit(cache=True)
def send(
    space: Space, at: Array, arena: Arena, begin: int, count: int, since: Array, after: Array,
    lane: Lane, arrival: Array, urgency: int,
) -> None:  # fmt: skip
    """Messages that wait for a task of their source: so many nanoseconds after a stretch began.

    A source that has to send them itself does so after all that it has done.
    """
    lane.several[:] = 0
    arrival[:] = -1
    load, base = lane.load, at[0]
    apart = lane.handles and urgency > 0
    for k in range(begin, begin + count):
        s, t = arena.messages[k, 0], arena.messages[k, 1]
        ns, first, second = arena.messages[k, 2], arena.messages[k, 3], arena.messages[k, 4]
        node = node_of(space, at, ns, first, second, -1, 0)
        space.nodes[node, URGENCY] = urgency
        if first >= 0:
            load[first] += ns
        if second >= 0:
            load[second] += ns
        if apart:
            continue
        if lane.handles:
            spend(space, at, s, arena.messages[k, 5], lane)
            edge(space, at, lane.stretch[s], node, lane.offset[s])
        elif since[s] >= 0:
            edge(space, at, since[s], node, after[s])
        arrive(space, at, t, node, arrival, lane.several)
        space.nodes[arrival[t], TAKING] += arena.messages[k, 6]
    if apart and at[0] >= 0:
        _send_apart(space, at, arena, begin, count, base, since, after, lane, arrival)


@njit(cache=True)
def _send_apart(
    space: Space, at: Array, arena: Arena, begin: int, count: int, base: int, since: Array,
    after: Array, lane: Lane, arrival: Array,
) -> None:  # fmt: skip
    """Slices are sent and taken in by threads of their own, between what their devices compute."""
    for k in range(begin, begin + count):
        s = arena.messages[k, 0]
        task = beside(space, at, s, max(1, arena.messages[k, 5]), lane)
        if since[s] >= 0:
            edge(space, at, since[s], task, after[s])
        edge(space, at, task, base + k - begin, 0)
    for k in range(begin, begin + count):
        t = arena.messages[k, 1]
        task = beside(space, at, t, max(1, arena.messages[k, 6]), lane)
        edge(space, at, base + k - begin, task, 0)
        arrive(space, at, t, task, arrival, lane.several)


@njit(cache=True, inline="always")
def arrive(space: Space, at: Array, t: int, node: int, arrival: Array, several: Array) -> None:
    """What arrives on a device in several pieces is there with the last of them."""
    several[t] += 1
    if several[t] == 1:
        arrival[t] = node
    else:
        if several[t] == 2:
            join = node_of(space, at, 0, -1, -1, -1, 0)
            edge(space, at, arrival[t], join, 0)
            space.nodes[join, TAKING] = space.nodes[arrival[t], TAKING]
            arrival[t] = join
        edge(space, at, node, arrival[t], 0)
