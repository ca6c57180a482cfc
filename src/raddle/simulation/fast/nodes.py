"""Writes tasks and messages as nodes and edges of a StepDag, JIT-compiled.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

The dag (directed acyclic graph) has the nodes and edges of one step. An arrival is the node whose end means
that messages have arrived on a device. A device computes in the program's order. All tasks between two
arrivals that it waits for are folded into one node, a stretch. A message that waits for a task inside a
stretch waits for the start of the stretch plus a delay.

Folding is impossible if a device also has unordered tasks, which may run between any two tasks: updates of
slices of a parameter, and device time to send and receive slices. Then every task is a node that holds its
device.

Arguments of all functions: dag is written; used = [nodes, edges] written so far; progress is updated. They
are explained in arrays.py.
"""

# d: device, s: source (a device), t: target (a device), k: row of arena.messages

from __future__ import annotations

from numba import njit

from raddle.simulation.fast.arrays import (
    AWAITED,
    BUSY_BEFORE,
    DEVICE,
    DURATION,
    FIRST_RESOURCE,
    LATENCY,
    RECEIVE_OVERHEAD,
    SECOND_RESOURCE,
    URGENCY,
    Arena,
    Array,
    DeviceProgress,
    StepDag,
)
from raddle.simulation.heaps import allocates_nothing

NO_ROOM = -(10**9)  # used[0] when the arrays of the dag are full


@njit(cache=True, inline="always")
def add_node(
    dag: StepDag, used: Array, duration: int, first: int, second: int, device: int, busy_before: int
) -> int:
    """Adds a node with the given columns (arrays.py); returns its number.

    first, second: the resources that it holds, or -1. device: that of a stretch, else -1.
    """
    node = used[0]
    nodes = dag.nodes
    if node < 0 or node >= len(nodes):
        used[0] = NO_ROOM
        return 0
    nodes[node, DURATION], nodes[node, FIRST_RESOURCE], nodes[node, SECOND_RESOURCE] = (
        duration,
        first,
        second,
    )
    nodes[node, DEVICE], nodes[node, BUSY_BEFORE], nodes[node, AWAITED] = device, busy_before, 0
    nodes[node, RECEIVE_OVERHEAD], nodes[node, URGENCY], nodes[node, LATENCY] = 0, 0, 0
    used[0] = node + 1
    return int(node)


@njit(cache=True, inline="always")
def add_edge(dag: StepDag, used: Array, source: int, target: int, delay: int) -> None:
    """Lets `target` wait until `delay` after the end of `source` (of a stretch: after its start)."""
    number = used[1]
    edges = dag.edges
    if number >= len(edges):
        used[0] = NO_ROOM
    else:
        edges[number, 0], edges[number, 1], edges[number, 2] = source, target, delay
        used[1] = number + 1


@allocates_nothing
def await_arrival(
    dag: StepDag, used: Array, arrival: int, d: int, progress: DeviceProgress
) -> None:
    """Lets the next task of device d wait for the node `arrival` (-1: for nothing): begins a new stretch.

    The current stretch waits for the arrival, without a new one, if it has no task yet and no node waits
    for its start. If the device has already waited for this arrival, nothing changes.
    """
    if arrival >= 0 and dag.nodes[arrival, AWAITED] == 0:
        dag.nodes[arrival, AWAITED] = 1
        # A stretch with a task has an offset over 0 or, without `fold`, is a node that holds a device.
        # AWAITED of a stretch: a collective waits for its start (collective_nodes.py sets it).
        stretch = dag.nodes[progress.stretch[d]]
        if progress.offset[d] > 0 or stretch[FIRST_RESOURCE] >= 0 or stretch[AWAITED] > 0:
            progress.busy_before[d] += progress.offset[d]
            # A stretch has no duration and holds no resource; edges from it have delays.
            node = add_node(
                dag, used, 0, -1, -1, d if progress.fold else -1, progress.busy_before[d]
            )
            add_edge(dag, used, progress.stretch[d], node, progress.offset[d])
            progress.stretch[d], progress.offset[d] = node, 0
        add_edge(dag, used, arrival, progress.stretch[d], 0)
        progress.receive_overhead[d] += dag.nodes[arrival, RECEIVE_OVERHEAD]


@allocates_nothing
def add_compute(dag: StepDag, used: Array, d: int, ns: int, progress: DeviceProgress) -> None:
    """Adds the next task of device d, which takes `ns` plus the overhead of messages that it receives."""
    ns += progress.receive_overhead[d]
    progress.receive_overhead[d] = 0
    add_device_time(dag, used, d, ns, progress)
    progress.last_compute[d] = progress.stretch[d]


@allocates_nothing
def add_device_time(dag: StepDag, used: Array, d: int, ns: int, progress: DeviceProgress) -> None:
    """Lets device d be busy for `ns` nanoseconds, after all that it has done so far."""
    if progress.fold:
        progress.offset[d] += ns
        progress.load[d] += ns
    elif ns > 0:  # the edge puts the new node after all that the device has done
        node = add_unordered_task(dag, used, d, ns, progress)
        add_edge(dag, used, progress.stretch[d], node, progress.offset[d])
        progress.stretch[d], progress.offset[d] = node, 0


@allocates_nothing
def add_unordered_task(dag: StepDag, used: Array, d: int, ns: int, progress: DeviceProgress) -> int:
    """Adds a task of device d outside of its order; returns its node. It runs when the device is free."""
    progress.load[d] += ns
    return int(add_node(dag, used, ns, d, -1, -1, 0))


@allocates_nothing
def add_messages(
    dag: StepDag, used: Array, arena: Arena, begin: int, count: int, predecessor: Array, delay: Array,
    progress: DeviceProgress, arrival: Array, urgency: int,
) -> None:  # fmt: skip
    """Adds the messages of `count` rows of arena.messages, from row `begin` on.

    A message from device s starts delay[s] after the node predecessor[s] (-1: it waits for nothing). With
    host overhead, the source sends it after all that it has done. `arrival` receives, by device, the node
    with which its messages have arrived. urgency: 0, or that of messages with slices of a parameter.
    """
    progress.arrivals[:] = 0
    arrival[:] = -1
    load, first_node = progress.load, used[0]
    unordered = progress.has_host_overhead and urgency > 0
    for k in range(begin, begin + count):
        s, t = arena.messages[k, 0], arena.messages[k, 1]
        ns, first, second = arena.messages[k, 2], arena.messages[k, 3], arena.messages[k, 4]
        node = add_node(dag, used, ns, first, second, -1, 0)
        dag.nodes[node, URGENCY], dag.nodes[node, LATENCY] = urgency, arena.messages[k, 7]
        if first >= 0:
            load[first] += ns
        if second >= 0:
            load[second] += ns
        if unordered:
            continue
        # Columns 5 and 6 of a message: host overhead of the source, of the target.
        if progress.has_host_overhead:
            add_device_time(dag, used, s, arena.messages[k, 5], progress)
            add_edge(dag, used, progress.stretch[s], node, progress.offset[s])
        elif predecessor[s] >= 0:
            add_edge(dag, used, predecessor[s], node, delay[s])
        add_arrival(dag, used, t, node, arrival, progress.arrivals)
        dag.nodes[arrival[t], RECEIVE_OVERHEAD] += arena.messages[k, 6]
    if unordered and used[0] >= 0:
        _add_unordered_overhead(
            dag, used, arena, begin, count, first_node, predecessor, delay, progress, arrival
        )


@allocates_nothing
def _add_unordered_overhead(
    dag: StepDag, used: Array, arena: Arena, begin: int, count: int, first_node: int, predecessor: Array,
    delay: Array, progress: DeviceProgress, arrival: Array,
) -> None:  # fmt: skip
    """Adds the host overhead of slices: an unordered task on the source and one on the target.

    In a run, separate threads send and receive slices, so the tasks are not part of the devices' order.
    first_node: the node of the first message; the others follow it. Other arguments: see `add_messages`.
    """
    for k in range(begin, begin + count):
        s = arena.messages[k, 0]
        task = add_unordered_task(dag, used, s, max(1, arena.messages[k, 5]), progress)
        if predecessor[s] >= 0:
            add_edge(dag, used, predecessor[s], task, delay[s])
        add_edge(dag, used, task, first_node + k - begin, 0)
    for k in range(begin, begin + count):
        t = arena.messages[k, 1]
        task = add_unordered_task(dag, used, t, max(1, arena.messages[k, 6]), progress)
        add_edge(dag, used, first_node + k - begin, task, 0)
        add_arrival(dag, used, t, task, arrival, progress.arrivals)


@njit(cache=True, inline="always")
def add_arrival(
    dag: StepDag, used: Array, t: int, node: int, arrival: Array, arrivals: Array
) -> None:
    """Adds a node to those that arrive on device t; if several arrive, a join waits for all of them.

    arrival: by device, the node that ends when all have arrived: the only one, or the join. arrivals: by
    device, how many nodes arrive.
    """
    arrivals[t] += 1
    if arrivals[t] == 1:
        arrival[t] = node
    else:
        if arrivals[t] == 2:
            join = add_node(dag, used, 0, -1, -1, -1, 0)
            add_edge(dag, used, arrival[t], join, 0)
            dag.nodes[join, RECEIVE_OVERHEAD] = dag.nodes[arrival[t], RECEIVE_OVERHEAD]
            arrival[t] = join
        add_edge(dag, used, node, arrival[t], 0)
