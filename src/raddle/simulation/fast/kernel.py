"""One step of a program from arrays: its tasks are put together, folded, and simulated, all compiled.

A device computes in the program's order, so between two arrivals that it waits for its tasks are one
stretch: what waits for a task inside of it waits for the start of the stretch and so many nanoseconds more.
Stretches and messages are all that is left of the tasks, and their times are exactly those of the full
simulation (simulation/engine.py): links serve by ready time and number, and messages keep their order.

`limit` is the longest time that is of interest: the run is given up as soon as it is certain to take
longer, because some resource has more left to do than there is time.
"""

# node: a stretch, a message, a part of an all-reduce, or a point where several meet
# d: device; v: value; i: operator; p: parameter; g: set of rings

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.simulation.engine import _pop, _push

Array = np.ndarray

# Events of an operator's backward, in order.
VALUE, VALUE_LAST, PARAMETER, PARAMETER_LAST = 0, 1, 2, 3
# Columns of a node: the device is that of a stretch, else -1; what the device has computed before it;
# whether an arrival has been waited for; what taking it in takes.
DURATION, FIRST, SECOND, DEVICE, DONE, SEEN, TAKING = range(7)
TOO_SMALL = -2  # the work space
NO_ROOM = -(10**9)  # for a node or an edge
LONGER = -1  # than the limit


class Script(NamedTuple):
    """The order of a graph's instructions, the same for all plans. x_at[i]:x_at[i + 1] is i's part of x."""

    read_at: Array  # values that an operator reads
    read: Array
    made_at: Array  # values that it makes
    made: Array
    backward: Array  # operators in the order of their backward
    graded_at: Array  # of the values that it makes, those with a gradient
    graded: Array
    event_at: Array  # what its backward contributes to, in order
    event: Array
    event_what: Array


class Slots(NamedTuple):
    """The state of a plan: rows of the arena, as (first, count), by operator, value or parameter."""

    forward: Array  # compute rows by operator
    backward: Array
    merge: Array
    partial: Array  # message rows by operator
    partial_back: Array
    activation: Array  # message rows by value
    gradient: Array
    update: Array  # compute rows by parameter
    push: Array  # message rows by parameter, to and from a server
    pull: Array
    rings: Array  # by parameter: the set of rings (-1: none), and its first row in the amounts


class Arena(NamedTuple):
    """Rows that slots point to."""

    computes: Array  # [row, (device, nanoseconds)]
    # [row, (source, target, nanoseconds, first link, second link, nanoseconds of source, of target)]
    messages: Array
    # [row, (bytes that are summed, bytes in memory)] of a parameter, by ring of its set
    amounts: Array


class Rings(NamedTuple):
    """Rings that sum gradients, in sets; sets are numbered as they were met."""

    set_at: Array
    ring: Array  # of a set, in order
    member_at: Array
    member: Array
    first: Array  # links of a member
    second: Array
    figures: Array  # [ring, (size, bandwidth, latency, heads, their bandwidth, latency)]
    inner_at: Array
    inner: Array  # [.., (size, bandwidth, latency)] of the rings inside of nodes


class Handling(NamedTuple):
    """What communication takes from the devices themselves, in seconds by device (costs/handling.py)."""

    handles: bool  # whether it takes anything from any
    message: Array
    byte: Array
    sum: Array


class Space(NamedTuple):
    """Where nodes and edges are written; made once."""

    nodes: Array  # [node, (duration, first, second link, device, done before, seen, taking)]
    edges: Array  # [edge, (source, target, nanoseconds after the source's start or end)]
    arrival: Array  # [value, device]: where activations arrive
    returned: Array  # the same of gradients
    given: Array  # [value, device]: the stretch of the last contribution to a gradient
    given_after: Array  # and how far into it
    last: Array  # [parameter, device]: the same of parameters
    last_after: Array
    summed: Array  # [reduction, device]: where sums arrive
    joined: Array  # [device]: where parts arrive


class Lane(NamedTuple):
    """By device: its current stretch, how far it has come in it and before it, what it is to take in; and
    loads of resources."""

    stretch: Array
    offset: Array
    done: Array
    taking: Array
    load: Array
    handles: bool


@njit(cache=True)
def step_time(
    devices: int,
    links: int,
    bucket: int,
    script: Script,
    slots: Slots,
    arena: Arena,
    rings: Rings,
    handling: Handling,
    space: Space,
    limit: int,
    fold: bool,
    counts: Array,  # out: nodes, edges, nodes that were simulated
) -> int:
    """Nanoseconds of a step; LONGER than the limit, or TOO_SMALL a work space."""
    load = np.zeros(devices + links, np.int64)
    tails = np.zeros((devices, 2), np.int64)
    sizes = _assemble(
        devices, bucket, script, slots, arena, rings, handling, space, fold, load, tails
    )
    if sizes[0] < 0:
        return TOO_SMALL
    counts[0], counts[1], counts[2] = sizes[0], sizes[1], 0
    for r in range(len(load)):
        if load[r] > limit:
            return LONGER
    return _run(devices, sizes[0], sizes[1], space, load, tails, limit, counts)


@njit(cache=True)
def _assemble(
    devices: int, bucket: int, script: Script, slots: Slots, arena: Arena, rings: Rings,
    handling: Handling, space: Space, fold: bool, load: Array, tails: Array,
) -> tuple[int, int]:  # fmt: skip
    """Writes nodes and edges, sums the loads of resources, and notes where each device ends.

    Long, because it is hot: every call of a compiled function counts references of all arrays it is given.
    """
    at = np.zeros(2, np.int64)  # nodes, edges; nodes become negative when there is no room
    lane = Lane(
        np.arange(devices).astype(np.int32),
        np.zeros(devices, np.int64),
        np.zeros(devices, np.int64),
        np.zeros(devices, np.int64),
        load,
        handling.handles,
    )
    several = np.zeros(devices, np.int32)
    for d in range(devices):
        _node(space, at, 0, -1, -1, d, 0)
    # Most operators neither send nor wait: their devices go on, and nothing else is looked at.
    computes, stretch, offset = arena.computes, lane.stretch, lane.offset
    given, given_after, last, last_after = (
        space.given,
        space.given_after,
        space.last,
        space.last_after,
    )
    busy = np.ones(len(slots.forward), np.bool_)
    if fold:
        made, read = (script.made_at, script.made), (script.read_at, script.read)
        busy = _busy(slots.merge, slots.activation, *made, *read)
    for i in range(len(slots.forward)):
        if not busy[i]:
            row = slots.forward[i, 0]
            for k in range(row, row + slots.forward[i, 1]):
                d, ns = computes[k, 0], computes[k, 1]
                offset[d] += ns
                load[d] += ns
            continue
        _forward(i, script, slots, arena, space, at, lane, fold, several)
        if at[0] < 0:
            return -1, -1
    if fold:
        graded = (script.graded_at, script.graded)
        busy = _busy(slots.merge, slots.gradient, *graded, *graded)

    parameters, sets = len(slots.update), len(rings.set_at) - 1
    space.last[:] = -1
    reduction = np.full(parameters, -1, np.int32)  # by parameter, where its sum arrives
    key = np.full(parameters, -1, np.int64)  # by parameter, when its gradient was complete
    waiting = np.full((sets, devices), -1, np.int32)  # by set, the last contribution to its bucket
    waiting_after = np.zeros((sets, devices), np.int64)
    filled = np.zeros(sets, np.int64)
    amounts = np.zeros(len(rings.ring), np.int64)
    inside = np.full(parameters, -1, np.int32)  # by parameter, the set whose bucket it waits in
    met = np.empty(sets, np.int64)  # sets in the order of their first bucket
    opened, clock, sums = 0, 0, 0
    for b in range(len(script.backward)):
        i = script.backward[b]
        clock += 1
        row, count = slots.backward[i, 0], slots.backward[i, 1]
        if busy[i]:
            _backward(i, script, slots, arena, space, at, lane, fold, several)
        else:
            for k in range(row, row + count):
                d, ns = computes[k, 0], computes[k, 1]
                offset[d] += ns
                load[d] += ns
        for e in range(script.event_at[i], script.event_at[i + 1]):
            what, x = script.event_what[e], script.event[e]
            if what <= VALUE_LAST:
                if slots.gradient[x, 1] > 0:
                    for k in range(row, row + count):
                        d = computes[k, 0]
                        given[x, d], given_after[x, d] = stretch[d], offset[d]
                    if what == VALUE_LAST:
                        _send(
                            space, at, arena, slots.gradient[x], space.given[x],
                            space.given_after[x], lane, space.returned[x], several,
                        )  # fmt: skip
                continue
            for k in range(row, row + count):
                d = computes[k, 0]
                last[x, d], last_after[x, d] = stretch[d], offset[d]
            key[x] = clock
            if what == PARAMETER:
                continue
            if slots.push[x, 1] > 0:
                clock += 1
                key[x], reduction[x] = clock, sums
                _send(
                    space, at, arena, slots.push[x], space.last[x], space.last_after[x], lane,
                    space.summed[sums], several,
                )  # fmt: skip
                sums += 1
            g = slots.rings[x, 0]
            if g < 0:
                continue
            seen = False
            for k in range(opened):
                seen = seen or met[k] == g
            if not seen:
                met[opened] = g
                opened += 1
            for k in range(rings.set_at[g], rings.set_at[g + 1]):
                row_of = slots.rings[x, 1] + k - rings.set_at[g]
                amounts[k] += arena.amounts[row_of, 0]
                filled[g] += arena.amounts[row_of, 1]
            for d in range(devices):
                when, after = last[x, d], last_after[x, d]
                if when > waiting[g, d] or (when == waiting[g, d] and after > waiting_after[g, d]):
                    waiting[g, d], waiting_after[g, d] = when, after
            inside[x] = g
            if filled[g] >= bucket:
                clock += 1
                _flush(
                    space, at, rings, handling, g, waiting[g], waiting_after[g], amounts, lane,
                    space.summed[sums], several,
                )  # fmt: skip
                _note(g, inside, reduction, key, sums, clock)
                filled[g] = 0
                sums += 1
        if at[0] < 0:
            return -1, -1
    for k in range(opened):
        g = met[k]
        if filled[g] > 0:
            clock += 1
            _flush(
                space, at, rings, handling, g, waiting[g], waiting_after[g], amounts, lane,
                space.summed[sums], several,
            )  # fmt: skip
            _note(g, inside, reduction, key, sums, clock)
            sums += 1

    _updates(key, reduction, slots, arena, space, at, lane, fold, several)
    if at[0] < 0:
        return -1, -1
    for d in range(devices):
        tails[d, 0], tails[d, 1] = lane.stretch[d], lane.offset[d]
    return at[0], at[1]


@njit(cache=True)
def _busy(
    merge: Array, messages: Array, at: Array, values: Array, more_at: Array, more: Array
) -> Array:
    """By operator, whether it merges, or one of its values (of two lists of them) is sent."""
    busy = np.zeros(len(merge), np.bool_)
    for i in range(len(merge)):
        busy[i] = merge[i, 1] > 0
        for j in range(at[i], at[i + 1]):
            busy[i] |= messages[values[j], 1] > 0
        for j in range(more_at[i], more_at[i + 1]):
            busy[i] |= messages[more[j], 1] > 0
    return busy


@njit(cache=True)
def _updates(
    key: Array, reduction: Array, slots: Slots, arena: Arena, space: Space, at: Array, lane: Lane,
    fold: bool, several: Array,
) -> None:  # fmt: skip
    """Updates parameters in the order in which their gradients were complete: the last layers first."""
    computes = arena.computes
    for p in np.argsort(key, kind="mergesort"):
        if key[p] < 0 or at[0] < 0:
            continue
        for k in range(slots.update[p, 0], slots.update[p, 0] + slots.update[p, 1]):
            d, ns = computes[k, 0], computes[k, 1]
            if reduction[p] >= 0:
                arrival = space.summed[reduction[p], d]
                if arrival >= 0 and space.nodes[arrival, SEEN] == 0:
                    _await(space, at, arrival, d, lane)
            if fold:
                ns += lane.taking[d]
                lane.taking[d] = 0
                lane.offset[d] += ns
                lane.load[d] += ns
            else:
                _compute(space, at, d, ns, lane, fold)
        if slots.pull[p, 1] > 0:
            _send(
                space, at, arena, slots.pull[p], lane.stretch, lane.offset, lane,
                space.joined, several,
            )  # fmt: skip


@njit(cache=True)
def _note(g: int, inside: Array, reduction: Array, key: Array, sums: int, clock: int) -> None:
    """The parameters of a bucket are complete with its reduction."""
    for p in range(len(inside)):
        if inside[p] == g:
            inside[p] = -1
            reduction[p], key[p] = sums, clock


@njit(cache=True)
def _forward(
    i: int, script: Script, slots: Slots, arena: Arena, space: Space, at: Array, lane: Lane,
    fold: bool, several: Array,
) -> None:  # fmt: skip
    """Runs an operator, merges what is partial, and sends what it makes."""
    arriving = False
    for j in range(script.read_at[i], script.read_at[i + 1]):
        arriving = arriving or slots.activation[script.read[j], 1] > 0
    for k in range(slots.forward[i, 0], slots.forward[i, 0] + slots.forward[i, 1]):
        d = arena.computes[k, 0]
        if arriving:
            for j in range(script.read_at[i], script.read_at[i + 1]):
                v = script.read[j]
                if slots.activation[v, 1] > 0:
                    _await(space, at, space.arrival[v, d], d, lane)
        _compute(space, at, d, arena.computes[k, 1], lane, fold)
    if slots.merge[i, 1] > 0:
        if slots.partial[i, 1] > 0:
            _send(
                space, at, arena, slots.partial[i], lane.stretch, lane.offset, lane,
                space.joined, several,
            )  # fmt: skip
        for k in range(slots.merge[i, 0], slots.merge[i, 0] + slots.merge[i, 1]):
            d = arena.computes[k, 0]
            if slots.partial[i, 1] > 0:
                _await(space, at, space.joined[d], d, lane)
            _compute(space, at, d, arena.computes[k, 1], lane, fold)
    for j in range(script.made_at[i], script.made_at[i + 1]):
        v = script.made[j]
        if slots.activation[v, 1] > 0:
            _send(
                space, at, arena, slots.activation[v], lane.stretch, lane.offset, lane,
                space.arrival[v], several,
            )  # fmt: skip


@njit(cache=True)
def _backward(
    i: int, script: Script, slots: Slots, arena: Arena, space: Space, at: Array, lane: Lane,
    fold: bool, several: Array,
) -> None:  # fmt: skip
    """Takes the gradient of what was merged apart, and runs an operator backward."""
    merged = slots.merge[i, 1] > 0
    back = merged and slots.partial_back[i, 1] > 0
    if merged:
        for k in range(slots.merge[i, 0], slots.merge[i, 0] + slots.merge[i, 1]):
            d = arena.computes[k, 0]
            _await_gradients(i, d, script, slots, space, at, lane)
            _compute(space, at, d, arena.computes[k, 1], lane, fold)
        if back:
            _send(
                space, at, arena, slots.partial_back[i], lane.stretch, lane.offset, lane,
                space.joined, several,
            )  # fmt: skip
    for k in range(slots.backward[i, 0], slots.backward[i, 0] + slots.backward[i, 1]):
        d = arena.computes[k, 0]
        if back:
            _await(space, at, space.joined[d], d, lane)
        _await_gradients(i, d, script, slots, space, at, lane)
        _compute(space, at, d, arena.computes[k, 1], lane, fold)


@njit(cache=True)
def _await_gradients(
    i: int, d: int, script: Script, slots: Slots, space: Space, at: Array, lane: Lane
) -> None:
    for j in range(script.graded_at[i], script.graded_at[i + 1]):
        v = script.graded[j]
        if slots.gradient[v, 1] > 0:
            _await(space, at, space.returned[v, d], d, lane)


@njit(cache=True, inline="always")
def _node(
    space: Space, at: Array, duration: int, first: int, second: int, device: int, done: int
) -> int:
    node = at[0]
    nodes = space.nodes
    if node < 0 or node >= len(nodes):
        at[0] = NO_ROOM
        return 0
    nodes[node, DURATION], nodes[node, FIRST], nodes[node, SECOND] = duration, first, second
    nodes[node, DEVICE], nodes[node, DONE], nodes[node, SEEN] = device, done, 0
    nodes[node, TAKING] = 0
    at[0] = node + 1
    return int(node)


@njit(cache=True, inline="always")
def _edge(space: Space, at: Array, source: int, target: int, after: int) -> None:
    edge = at[1]
    edges = space.edges
    if edge >= len(edges):
        at[0] = NO_ROOM
    else:
        edges[edge, 0], edges[edge, 1], edges[edge, 2] = source, target, after
        at[1] = edge + 1


@njit(cache=True)
def _await(space: Space, at: Array, arrival: int, d: int, lane: Lane) -> None:
    """Lets the next task of a device wait for an arrival: a new stretch begins.

    What the device has waited for once, it has; a stretch that has not computed yet waits for one more.
    """
    if arrival >= 0 and space.nodes[arrival, SEEN] == 0:
        space.nodes[arrival, SEEN] = 1
        if lane.offset[d] > 0:
            _begin(space, at, d, lane)
        _edge(space, at, arrival, lane.stretch[d], 0)
        lane.taking[d] += space.nodes[arrival, TAKING]


@njit(cache=True)
def _begin(space: Space, at: Array, d: int, lane: Lane) -> None:
    lane.done[d] += lane.offset[d]
    node = _node(space, at, 0, -1, -1, d, lane.done[d])
    _edge(space, at, lane.stretch[d], node, lane.offset[d])
    lane.stretch[d], lane.offset[d] = node, 0


@njit(cache=True)
def _compute(space: Space, at: Array, d: int, ns: int, lane: Lane, fold: bool) -> None:
    if not fold and lane.offset[d] > 0:
        _begin(space, at, d, lane)
    ns += lane.taking[d]
    lane.taking[d] = 0
    lane.offset[d] += ns
    lane.load[d] += ns


@njit(cache=True)
def _send(
    space: Space, at: Array, arena: Arena, slot: Array, since: Array, after: Array, lane: Lane,
    arrival: Array, several: Array,
) -> None:  # fmt: skip
    """Messages that wait for a task of their source: so many nanoseconds after a stretch began.

    A source that has to send them itself does so after all that it has done.
    """
    several[:] = 0
    arrival[:] = -1
    load = lane.load
    for k in range(slot[0], slot[0] + slot[1]):
        s, t = arena.messages[k, 0], arena.messages[k, 1]
        ns, first, second = arena.messages[k, 2], arena.messages[k, 3], arena.messages[k, 4]
        node = _node(space, at, ns, first, second, -1, 0)
        if lane.handles:
            own = arena.messages[k, 5]
            lane.offset[s] += own
            load[s] += own
            _edge(space, at, lane.stretch[s], node, lane.offset[s])
        else:
            _edge(space, at, since[s], node, after[s])
        if first >= 0:
            load[first] += ns
        if second >= 0:
            load[second] += ns
        _arrive(space, at, t, node, arrival, several)
        space.nodes[arrival[t], TAKING] += arena.messages[k, 6]


@njit(cache=True, inline="always")
def _arrive(space: Space, at: Array, t: int, node: int, arrival: Array, several: Array) -> None:
    """What arrives on a device in several pieces is there with the last of them."""
    several[t] += 1
    if several[t] == 1:
        arrival[t] = node
    else:
        if several[t] == 2:
            join = _node(space, at, 0, -1, -1, -1, 0)
            _edge(space, at, arrival[t], join, 0)
            space.nodes[join, TAKING] = space.nodes[arrival[t], TAKING]
            arrival[t] = join
        _edge(space, at, node, arrival[t], 0)


@njit(cache=True)
def _flush(
    space: Space, at: Array, rings: Rings, handling: Handling, g: int, since: Array, after: Array,
    amounts: Array, lane: Lane, arrival: Array, several: Array,
) -> None:  # fmt: skip
    """All-reduces a bucket: each of its rings starts with its last member."""
    several[:] = 0
    arrival[:] = -1
    load = lane.load
    for k in range(rings.set_at[g], rings.set_at[g + 1]):
        ring = rings.ring[k]
        gate = _node(space, at, 0, -1, -1, -1, 0)
        nbytes = amounts[k]
        ns = max(1, int(np.rint(_all_reduce_seconds(rings, ring, nbytes) * 1e9)))
        amounts[k] = 0
        begin, end = rings.member_at[ring], rings.member_at[ring + 1]
        for m in range(begin, end):
            d = rings.member[m]
            if lane.handles:
                _edge(space, at, lane.stretch[d], gate, lane.offset[d])
                own = 4 * (end - begin - 1) / (end - begin) * nbytes
                own = int(np.rint((handling.sum[d] + handling.byte[d] * own) * 1e9))
                lane.offset[d] += own
                load[d] += own
            elif since[d] >= 0:
                _edge(space, at, since[d], gate, after[d])
        for m in range(begin, end):
            first, second = rings.first[m], rings.second[m]
            node = _node(space, at, ns, first, second, -1, 0)
            _edge(space, at, gate, node, 0)
            if first >= 0:
                load[first] += ns
            if second >= 0:
                load[second] += ns
            _arrive(space, at, rings.member[m], node, arrival, several)
    since[:] = -1
    after[:] = 0


@njit(cache=True)
def _all_reduce_seconds(rings: Rings, ring: int, nbytes: int) -> float:
    """costs/collectives.py, with what depends on the cluster in figures."""
    p, bandwidth, latency = rings.figures[ring, 0], rings.figures[ring, 1], rings.figures[ring, 2]
    best = 2 * (p - 1) * (latency + nbytes / p / bandwidth)
    best = min(best, 2 * np.ceil(np.log2(p)) * (latency + nbytes / bandwidth))
    inside = 0.0
    for k in range(rings.inner_at[ring], rings.inner_at[ring + 1]):
        q, b, lag = rings.inner[k, 0], rings.inner[k, 1], rings.inner[k, 2]
        inside = max(inside, 2 * (q - 1) * (lag + nbytes / q / b))
    heads = rings.figures[ring, 3]
    if heads > 1:
        heads_bandwidth, heads_latency = rings.figures[ring, 4], rings.figures[ring, 5]
        inside += 2 * (heads - 1) * (heads_latency + nbytes / heads / heads_bandwidth)
    return float(min(best, inside))


@njit(cache=True)
def _run(
    devices: int, nodes: int, edges: int, space: Space, load: Array, tails: Array, limit: int,
    counts: Array,
) -> int:  # fmt: skip
    """simulation/engine.py on stretches and messages; LONGER as soon as that is certain."""
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
    heap_node = np.empty(nodes + 1, np.int32)
    stack = np.empty(nodes + 1, np.int32)
    size, depth, total, count = 0, 0, 0, 0
    for n in range(nodes):
        if left[n] == 0:
            stack[depth] = n  # a message waits for something, so this holds nothing
            depth += 1
    while size or depth:
        if depth:
            depth -= 1
            node = stack[depth]
        else:
            node = heap_node[0]
            size = _pop(heap_time, heap_node, size)
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
                    size = _push(heap_time, heap_node, size, ready[other], other)
    counts[2] = count
    for d in range(devices):
        total = max(total, ready[tails[d, 0]] + tails[d, 1])
    return LONGER if total > limit else total
