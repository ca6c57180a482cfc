"""One step of a program from arrays: its rows are put together, folded, and simulated, all compiled.

The tape has the order of what is computed and sent; program/step_script.py says, at its events, when gradients
leave and what is updated. Stretches and messages (nodes.py) are all that is left of the tasks, and their
times are exactly those of the full simulation (simulation/engine.py): links serve by ready time and
number, and messages keep their order.
"""

# r: row of the tape, n: row of the script, d: device, p: parameter, g: set of rings

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.program.step_script import (
    AFTER_ROW,
    BUCKETS,
    COLUMNS,
    FIRST_MEMBER,
    GROUP,
    MEMBER_COUNT,
    OPERATION,
    PARAMETER,
    PULL,
    PUSH,
    SUBJECT,
    SUM,
    UPDATE,
    ScriptState,
    SyncFacts,
)
from raddle.simulation.fast.arrays import (
    AMOUNT_AT,
    COMPUTE,
    EVENT,
    LATEST,
    NOW,
    OWN,
    PULL_AT,
    PULLS,
    PUSH_AT,
    PUSHES,
    RINGS,
    SEEN,
    TRAVELS,
    UPDATE_AT,
    UPDATES,
    Arena,
    Array,
    Handling,
    Lane,
    Rings,
    Slots,
    Space,
    Tape,
    Ways,
)
from raddle.simulation.fast.collectives import all_reduce
from raddle.simulation.fast.loop import LONGER as LONGER
from raddle.simulation.fast.loop import run
from raddle.simulation.fast.nodes import await_arrival, beside, compute, edge, node_of, send
from raddle.simulation.fast.rules import assemble

TOO_SMALL = -2  # the work space


@njit(cache=True)
def step_time(
    devices: int,
    links: int,
    ways: Ways,
    tape: Tape,
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
    lane = Lane(
        np.zeros(devices, np.int32), np.zeros(devices, np.int64), np.zeros(devices, np.int64),
        np.zeros(devices, np.int64), load, np.zeros(devices, np.int32), np.full(devices, -1, np.int32),
        handling.handles,
        fold and not ways.apart,
    )  # fmt: skip
    rows, members, row_at = _rows(ways, tape, slots, arena, rings)
    if row_at[-1] > len(space.summed):
        return TOO_SMALL
    sizes = _walk(
        devices, ways, tape, slots, arena, rings, handling, space, lane, rows, members, row_at
    )
    if sizes[0] < 0:
        return TOO_SMALL
    for d in range(devices):
        tails[d, 0], tails[d, 1] = lane.stretch[d], lane.offset[d]
    counts[0], counts[1], counts[2] = sizes[0], sizes[1], 0
    for r in range(len(load)):
        if load[r] > limit:
            return LONGER
    return run(devices, sizes[0], sizes[1], space, load, tails, limit, counts)


@njit(cache=True)
def _rows(
    ways: Ways, tape: Tape, slots: Slots, arena: Arena, rings: Rings
) -> tuple[Array, Array, Array]:
    """What program/step_script.py says about this plan."""
    parameters, sets = len(slots.synced), len(rings.set_at) - 1
    group, nbytes = np.full(parameters, -1, np.int64), np.zeros(parameters, np.int64)
    left = np.zeros(sets, np.int64)
    total = 0
    for p in range(parameters):
        total += slots.synced[p, 1]
        if slots.synced[p, 1] == 0 or ways.apart:
            continue
        row = slots.synced[p, 0]
        if ways.way == BUCKETS:
            g = arena.synced[row, RINGS]
            if g >= 0:
                left[g] += tape.graded[p]
                for k in range(rings.set_at[g + 1] - rings.set_at[g]):
                    nbytes[p] += arena.amounts[arena.synced[row, AMOUNT_AT] + k, 1]
            group[p] = g
        elif arena.synced[row, TRAVELS]:
            group[p] = 0
    first, count = slots.synced[:, 0], slots.synced[:, 1]
    travels = arena.synced[:, TRAVELS]
    facts = SyncFacts(
        ways.way, ways.bucket, False, ways.returned, False, group, nbytes, first, count, travels,
        np.arange(parameters),
    )  # fmt: skip
    members = np.empty(parameters, np.int64)
    rows = np.empty((3 * total + parameters) * COLUMNS, np.int64)
    state = ScriptState(
        np.zeros(8, np.int64), left, np.zeros(sets, np.int64), np.full(sets, -1, np.int64),
        np.empty(sets, np.int64), np.empty(parameters, np.int64), np.empty(sets, np.int64),
        np.empty(parameters, np.int64), np.empty(parameters, np.int64),
        np.empty(parameters, np.int64), members, rows,
    )  # fmt: skip
    row_at = np.zeros(len(tape.events) + 1, np.int64)
    assemble(tape.events, tape.event_parameter, tape.event_run, facts, state, row_at)
    return rows.reshape(-1, COLUMNS), members, row_at


@njit(cache=True)
def _walk(
    devices: int, ways: Ways, tape: Tape, slots: Slots, arena: Arena, rings: Rings,
    handling: Handling, space: Space, lane: Lane, rows: Array, members: Array,
    row_at: Array,
) -> tuple[int, int]:  # fmt: skip
    """Writes nodes and edges, and sums the loads of resources.

    Long, because it is hot: every call of a compiled function counts references of all arrays it is given.
    """
    at = np.zeros(2, np.int64)  # nodes, edges; nodes become negative when there is no room
    for d in range(devices):
        lane.stretch[d] = node_of(space, at, 0, -1, -1, d if lane.fold else -1, 0)
    computes, table, stretch, offset = arena.computes, slots.table, lane.stretch, lane.offset
    load, fold = lane.load, lane.fold
    marked, marked_after = space.marked, space.marked_after
    marked[: len(slots.synced)] = -1
    for r in range(len(tape.kind)):
        kind, x = tape.kind[r], tape.slot[r]
        if kind == EVENT:
            if row_at[x + 1] > row_at[x]:
                _event(
                    row_at[x], row_at[x + 1], ways, slots, arena, rings, handling, space, at, lane,
                    rows, members,
                )  # fmt: skip
            continue
        first, count = table[x, 0], table[x, 1]
        if count == 0:
            continue
        if at[0] < 0:
            return -1, -1
        if kind == COMPUTE:
            waits = not fold
            for j in range(tape.wait_at[r], tape.wait_at[r + 1]):
                waits = waits or table[tape.wait_slot[j], 1] > 0
            if not waits:
                # Most operators neither send nor wait: their devices go on, and nothing else is looked at.
                for k in range(first, first + count):
                    d, ns = computes[k, 0], computes[k, 1]
                    offset[d] += ns
                    load[d] += ns
            else:
                for k in range(first, first + count):
                    d = computes[k, 0]
                    for j in range(tape.wait_at[r], tape.wait_at[r + 1]):
                        if table[tape.wait_slot[j], 1] > 0:
                            await_arrival(
                                space, at, space.arrival[tape.wait_arrival[j], d], d, lane
                            )
                    compute(space, at, d, computes[k, 1], lane)
            for j in range(tape.mark_at[r], tape.mark_at[r + 1]):
                if tape.mark_slot[j] < 0 or table[tape.mark_slot[j], 1] > 0:
                    m = tape.mark[j]
                    for k in range(first, first + count):
                        d = computes[k, 0]
                        marked[m, d], marked_after[m, d] = stretch[d], offset[d]
        else:
            m, arrival = tape.since[r], space.arrival[tape.arrival[r]]
            if m == NOW:
                send(
                    space, at, arena, first, count, stretch, offset, lane, arrival, tape.urgency[r]
                )
            elif m == LATEST:
                none = np.zeros(devices, np.int64)
                send(space, at, arena, first, count, lane.ran, none, lane, arrival, tape.urgency[r])
            else:
                since, after = marked[m], marked_after[m]
                send(space, at, arena, first, count, since, after, lane, arrival, tape.urgency[r])
    return at[0], at[1]


@njit(cache=True)
def _event(
    begin: int, end: int, ways: Ways, slots: Slots, arena: Arena, rings: Rings,
    handling: Handling, space: Space, at: Array, lane: Lane, rows: Array, members: Array,
) -> None:  # fmt: skip
    """Rows of the script: sums, messages to and from servers, and updates."""
    devices = len(lane.stretch)
    updated, no_time = np.full(devices, -1, np.int32), np.zeros(devices, np.int64)
    computes, synced, nodes, summed = arena.computes, arena.synced, space.nodes, space.summed
    taking, offset, load, fold, apart = lane.taking, lane.offset, lane.load, lane.fold, ways.apart
    for n in range(begin, end):
        what, p, after = rows[n, OPERATION], rows[n, PARAMETER], rows[n, AFTER_ROW]
        if at[0] < 0:
            return
        if what == SUM:
            _sum(n, ways, slots, arena, rings, handling, space, at, lane, rows, members)
            continue
        row = rows[n, SUBJECT] if apart else slots.synced[rows[n, SUBJECT], 0]
        if what == PUSH:
            send(
                space, at, arena, synced[row, PUSH_AT], synced[row, PUSHES], space.marked[p],
                space.marked_after[p], lane, summed[n], ways.urgency[p],
            )  # fmt: skip
        elif what == PULL and apart:
            send(
                space, at, arena, synced[row, PULL_AT], synced[row, PULLS], updated, no_time, lane,
                summed[n], ways.urgency[rows[after, PARAMETER]],
            )  # fmt: skip
        elif what == PULL:
            send(
                space, at, arena, synced[row, PULL_AT], synced[row, PULLS], lane.stretch, offset, lane,
                summed[n], 0,
            )  # fmt: skip
        if what != UPDATE:
            continue
        for k in range(synced[row, UPDATE_AT], synced[row, UPDATE_AT] + synced[row, UPDATES]):
            d, ns = computes[k, 0], computes[k, 1]
            arrival = summed[after, d] if after >= 0 else -1
            if apart:
                updated[d] = beside(space, at, d, ns, lane)
                if arrival >= 0:
                    edge(space, at, arrival, updated[d], 0)
                if p >= 0 and synced[row, OWN] and space.marked[p, d] >= 0:
                    edge(space, at, space.marked[p, d], updated[d], space.marked_after[p, d])
                continue
            if arrival >= 0 and nodes[arrival, SEEN] == 0:
                await_arrival(space, at, arrival, d, lane)
            if fold:
                ns += taking[d]
                taking[d] = 0
                offset[d] += ns
                load[d] += ns
            else:
                compute(space, at, d, ns, lane)


@njit(cache=True)
def _sum(
    n: int, ways: Ways, slots: Slots, arena: Arena, rings: Rings, handling: Handling, space: Space,
    at: Array, lane: Lane, rows: Array, members: Array,
) -> None:  # fmt: skip
    """A collective: of a slice, when its members have come to it; of a bucket, when all of it is there."""
    if ways.apart:
        own = arena.synced[rows[n, SUBJECT]]
        amounts = arena.amounts[own[AMOUNT_AT] : own[AMOUNT_AT] + 1, 0].copy()
        all_reduce(
            space, at, rings, handling, own[RINGS], lane.stretch, lane.offset, amounts, lane,
            space.summed[n],
        )  # fmt: skip
        return
    g, devices = rows[n, GROUP], len(lane.stretch)
    since, since_after = np.full(devices, -1, np.int32), np.zeros(devices, np.int64)
    total = np.zeros(rings.set_at[g + 1] - rings.set_at[g], np.int64)
    for j in range(rows[n, FIRST_MEMBER], rows[n, FIRST_MEMBER] + rows[n, MEMBER_COUNT]):
        p = members[j]
        row = arena.synced[slots.synced[p, 0], AMOUNT_AT]
        for k in range(len(total)):
            total[k] += arena.amounts[row + k, 0]
        for d in range(devices):
            when, after = space.marked[p, d], space.marked_after[p, d]
            if when > since[d] or (when == since[d] and after > since_after[d]):
                since[d], since_after[d] = when, after
    all_reduce(space, at, rings, handling, g, since, since_after, total, lane, space.summed[n])
