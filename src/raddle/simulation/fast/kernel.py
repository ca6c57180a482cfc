"""Computes the time of one training step of a plan from arrays (arrays.py), JIT-compiled.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

1. `_script_rows` runs the step script (program/step_script.py): when gradients are sent, summed, updated.
   It gives a table; a row is one SUM (a collective), PUSH (gradient to a server), UPDATE or PULL (updated
   values from a server) of a parameter, a bucket or a slice.
2. `_write_dag` follows the tape and writes nodes and edges (nodes.py), folding consecutive tasks of a
   device into one node. At the tape's events it inserts the rows of the step script.
3. `run_dag` simulates the nodes (loop.py).

The tape lists a graph's computations, messages, gathers of blocks (ZeRO-3) and events in the program's
order, the same for all plans. The arena has the rows of all tilings so far; a slot says which rows of the
arena the current plan uses. A sync unit is a parameter or a bundle of slices that is synchronised at once.
A stretch is a series of tasks that a device computes without waiting; an offset is the time since its
start. A mark is a stretch and an offset at which messages may start (arrays.py). The result equals that of
the full simulation (simulation/engine.py) to the nanosecond.
"""

# r: row of the tape, n: row of the step script, d: device, p: parameter, g: set of rings, m: mark of the
# tape (arrays.py), j: place in a packed list, k: row of a table of the arena.
# Columns of a row of the step script: OPERATION (SUM, PUSH ...), SUBJECT (the parameter or slice), GROUP
# (of a SUM: the set of rings), PARAMETER and AFTER_ROW (it waits for this gradient and this row; -1: for
# none), FIRST_MEMBER and MEMBER_COUNT (of a SUM: its parameters, as a range of `members`).
# Columns of slots (slots.table by number, slots.sync_units by parameter): first row, number of rows.

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.program.step_script import (
    AFTER_ROW,
    ALL_GATHER,
    BUCKETS,
    COLLECTIVE,
    COLUMNS,
    COUNTERS,
    OPERATION,
    PARAMETER,
    PULL,
    PUSH,
    SHARDS,
    SUBJECT,
    SUM,
    UPDATE,
    ScriptState,
    SyncFacts,
)
from raddle.simulation.fast.arrays import (
    AFTER_ALL,
    AMOUNT_FIRST,
    AWAITED,
    BUNDLED_FIRST,
    COMPUTE,
    EVENT,
    GATHER,
    NEEDS_SYNC,
    PULL_COUNT,
    PULL_FIRST,
    PUSH_COUNT,
    PUSH_FIRST,
    REPLICA_SET,
    RING_SET,
    UPDATE_COUNT,
    UPDATE_FIRST,
    UPDATER_IS_HOLDER,
    Arena,
    Array,
    DeviceProgress,
    HostOverhead,
    Rings,
    Slots,
    StepDag,
    SyncSettings,
    Tape,
)
from raddle.simulation.fast.bundles import bundles_of_parameters, gradients_ready
from raddle.simulation.fast.collective_rows import (
    write_block_gather,
    write_gather,
    write_replica_sum,
    write_sum,
)
from raddle.simulation.fast.jit_script import write_rows
from raddle.simulation.fast.loop import OVER_LIMIT as OVER_LIMIT
from raddle.simulation.fast.loop import run_dag
from raddle.simulation.fast.nodes import (
    add_compute,
    add_edge,
    add_messages,
    add_node,
    add_unordered_task,
    await_arrival,
)

TOO_SMALL = -2  # result: the arrays of the StepDag are too small for this plan


@njit(cache=True)
def step_time(
    devices: int,  # number of devices
    links: int,  # number of links
    settings: SyncSettings,
    tape: Tape,
    slots: Slots,
    arena: Arena,
    rings: Rings,
    overhead: HostOverhead,
    dag: StepDag,
    limit: int,  # nanoseconds
    fold: bool,  # whether consecutive tasks of a device are one node
    counts: Array,  # out: nodes, edges, nodes that were simulated
) -> int:
    """Returns the nanoseconds of a step; or OVER_LIMIT, or TOO_SMALL (call again with a larger `dag`)."""
    load = np.zeros(devices + links, np.int64)
    # tails: by device, its last stretch, and how many nanoseconds this stretch takes
    tails = np.zeros((devices, 2), np.int64)
    progress = DeviceProgress(  # stretch, offset, busy_before ...: in the order of its fields
        np.zeros(devices, np.int32), np.zeros(devices, np.int64), np.zeros(devices, np.int64),
        np.zeros(devices, np.int64), load, np.zeros(devices, np.int32), np.full(devices, -1, np.int32),
        overhead.enabled,
        fold and not settings.sliced,  # nodes.py says why slices cannot be folded
    )  # fmt: skip
    rows, members, row_at = _script_rows(settings, tape, slots, arena, rings)
    if row_at[-1] > len(dag.sync_arrival):
        return TOO_SMALL
    sizes = _write_dag(
        devices, settings, tape, slots, arena, rings, overhead, dag, progress, rows, members, row_at
    )
    if sizes[0] < 0:
        return TOO_SMALL
    for d in range(devices):
        tails[d, 0], tails[d, 1] = progress.stretch[d], progress.offset[d]
    counts[0], counts[1], counts[2] = sizes[0], sizes[1], 0
    for resource in range(len(load)):
        if load[resource] > limit:
            return OVER_LIMIT
    return run_dag(devices, sizes[0], sizes[1], dag, load, tails, limit, counts)


@njit(cache=True)
def _script_rows(
    settings: SyncSettings, tape: Tape, slots: Slots, arena: Arena, rings: Rings
) -> tuple[Array, Array, Array]:
    """Runs program/step_script.py for this plan.

    Returns its rows, the parameters of its SUM rows (`members`), and by event the number of its first row
    (`row_at`).
    """
    parameters, set_count = len(slots.sync_units), len(rings.set_at) - 1
    # group: by parameter, the set of rings that sums it; with servers: 0; -1: nothing is sent. nbytes: by
    # parameter, the bytes in memory by which its gradient fills a bucket.
    # replicated: by parameter, 1 if its shards have replicas.
    group, nbytes = np.full(parameters, -1, np.int64), np.zeros(parameters, np.int64)
    replicated = np.zeros(parameters, np.int64)
    incomplete = np.zeros(set_count, np.int64)  # by set of rings: how many gradients it will sum
    total = 0  # number of sync units
    for p in range(parameters):
        total += slots.sync_units[p, 1]
        if slots.sync_units[p, 1] == 0 or settings.sliced:
            continue
        row = slots.sync_units[p, 0]
        if settings.rule == BUCKETS or settings.rule == SHARDS:
            g = arena.sync_units[row, RING_SET]
            if g >= 0:
                incomplete[g] += tape.has_gradient[p]
                for k in range(rings.set_at[g + 1] - rings.set_at[g]):
                    nbytes[p] += arena.amounts[arena.sync_units[row, AMOUNT_FIRST] + k, 1]
            group[p] = g
            replicated[p] = arena.sync_units[row, REPLICA_SET] >= 0
        elif arena.sync_units[row, NEEDS_SYNC]:
            group[p] = 0
    needs_sync = arena.sync_units[:, NEEDS_SYNC]
    first_bundle, bundles, missing = bundles_of_parameters(settings, slots, arena)
    # The first False: steps do not overlap. The second: the plan does not fix the order in which slices are
    # all-reduced (the evaluator refuses such plans, coverage.py). np.arange: parameters are numbered in the
    # order in which the backward reaches them.
    facts = SyncFacts(
        settings.rule, settings.bucket_bytes, False, settings.returns_updates, False,
        settings.after_backward, group, nbytes, replicated, first_bundle, bundles, needs_sync,
        np.arange(parameters),
    )  # fmt: skip
    members = np.empty(parameters, np.int64)
    # At most a PUSH (or SUM), an UPDATE and a PULL of each sync unit, and a SUM for each parameter: of a
    # bucket, or over replicas of shards.
    rows = np.empty((3 * total + parameters) * COLUMNS, np.int64)
    state = ScriptState(  # all empty; the fields are explained in step_script.py
        np.zeros(COUNTERS, np.int64), incomplete,
        np.zeros(set_count, np.int64), np.full(set_count, -1, np.int64),
        np.empty(set_count, np.int64), np.empty(parameters, np.int64), np.empty(set_count, np.int64),
        np.empty(parameters, np.int64), np.empty(parameters, np.int64),
        np.empty(parameters, np.int64), members, missing, rows,
    )  # fmt: skip
    row_at = np.zeros(len(tape.events) + 1, np.int64)
    write_rows(tape.events, tape.event_parameter, tape.event_run, facts, state, row_at)
    return rows.reshape(-1, COLUMNS), members, row_at


@njit(cache=True)
def _write_dag(
    devices: int, settings: SyncSettings, tape: Tape, slots: Slots, arena: Arena, rings: Rings,
    overhead: HostOverhead, dag: StepDag, progress: DeviceProgress, rows: Array, members: Array,
    row_at: Array,
) -> tuple[int, int]:  # fmt: skip
    """Writes the nodes and edges of the step, and adds up `progress.load`.

    Returns how many nodes and edges it wrote; the first number is negative if `dag` has no room for them.
    rows, members, row_at: the result of `_script_rows`.
    The function is long because it is hot: a call of a compiled function costs time for each array
    argument.
    """
    used = np.zeros(2, np.int64)  # nodes and edges written; used[0] < 0: there was no room
    for d in range(devices):
        progress.stretch[d] = add_node(dag, used, 0, -1, -1, d if progress.fold else -1, 0)
    computes, table, stretch, offset = (
        arena.computes,
        slots.table,
        progress.stretch,
        progress.offset,
    )
    load, fold = progress.load, progress.fold
    mark_stretch, mark_offset = dag.mark_stretch, dag.mark_offset
    mark_stretch[: len(slots.sync_units)] = -1  # the marks of parameters: no gradient yet
    for r in range(len(tape.kind)):
        kind, number = tape.kind[r], tape.slot[r]  # the number of a slot, or of an event
        if kind == EVENT:
            if row_at[number + 1] > row_at[number]:
                _write_event(
                    row_at[number], row_at[number + 1], settings, slots, arena, rings, overhead, dag, used,
                    progress, rows, members,
                )  # fmt: skip
            continue
        first, count = table[number, 0], table[number, 1]
        if count == 0:
            continue
        if used[0] < 0:
            return -1, -1
        if kind == COMPUTE:
            waits = not fold  # without folding, every task is written as a node
            for j in range(tape.wait_at[r], tape.wait_at[r + 1]):
                waits = waits or table[tape.wait_slot[j], 1] > 0
            if not waits:
                # Most operators do not wait: only the offsets of their devices advance.
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
                                dag, used, dag.arrival[tape.wait_arrival[j], d], d, progress
                            )
                    add_compute(dag, used, d, computes[k, 1], progress)
            for j in range(tape.mark_at[r], tape.mark_at[r + 1]):
                if tape.mark_slot[j] < 0 or table[tape.mark_slot[j], 1] > 0:
                    m = tape.mark[j]
                    for k in range(first, first + count):
                        d = computes[k, 0]
                        mark_stretch[m, d], mark_offset[m, d] = stretch[d], offset[d]
        elif kind == GATHER:
            write_gather(
                first, arena, rings, overhead, dag, used, progress, dag.arrival[tape.arrival[r]]
            )
        else:
            m, arrival = tape.send_after[r], dag.arrival[tape.arrival[r]]
            if m == AFTER_ALL:
                add_messages(
                    dag, used, arena, first, count, stretch, offset, progress, arrival,
                    0,
                )  # fmt: skip
            else:
                predecessor, delay = mark_stretch[m], mark_offset[m]
                add_messages(
                    dag, used, arena, first, count, predecessor, delay, progress, arrival,
                    0,
                )  # fmt: skip
    return used[0], used[1]


@njit(cache=True)
def _write_event(
    begin: int, end: int, settings: SyncSettings, slots: Slots, arena: Arena, rings: Rings,
    overhead: HostOverhead, dag: StepDag, used: Array, progress: DeviceProgress, rows: Array,
    members: Array,
) -> None:  # fmt: skip
    """Writes rows begin to end of the step script: all-reduces, messages to and from servers, updates."""
    devices = len(progress.stretch)
    # updated: by device, the node of the last update of a slice, for which the PULL after it waits
    updated, no_time = np.full(devices, -1, np.int32), np.zeros(devices, np.int64)
    ready, delay = np.full(devices, -1, np.int32), np.zeros(devices, np.int64)
    computes, sync_units, nodes, sync_arrival = (
        arena.computes,
        arena.sync_units,
        dag.nodes,
        dag.sync_arrival,
    )
    receive_overhead, offset, load, fold, sliced = (
        progress.receive_overhead,
        progress.offset,
        progress.load,
        progress.fold,
        settings.sliced,
    )
    for n in range(begin, end):
        # The row waits for the gradient of parameter p and for the row `after`; -1: for none.
        operation, p, after = rows[n, OPERATION], rows[n, PARAMETER], rows[n, AFTER_ROW]
        if used[0] < 0:
            return
        if operation == SUM and settings.rule == SHARDS and after >= 0:
            write_replica_sum(n, slots, arena, rings, overhead, dag, used, progress, rows, members)
            continue
        if operation == SUM:
            write_sum(
                n, settings, slots, arena, rings, overhead, dag, used, progress, rows, members
            )
            continue
        if rows[n, COLLECTIVE] == ALL_GATHER:
            write_block_gather(n, slots, arena, rings, overhead, dag, used, progress, rows, members)
            continue
        # The row of Arena.sync_units; with bundles, the subject is this row itself.
        row = rows[n, SUBJECT] if sliced else slots.sync_units[rows[n, SUBJECT], 0]
        urgency = 0
        if sliced:  # the urgency of the bundle's first parameter, which the forward uses first
            urgency = settings.urgency[arena.members[sync_units[row, BUNDLED_FIRST], 0]]
            if p >= 0:
                gradients_ready(row, devices, arena, dag, ready, delay)
        if operation == PUSH:
            # after the gradients or, with `after_backward`, after all that the device has computed
            if settings.after_backward and sliced:
                predecessor, wait = progress.last_compute, no_time
            elif settings.after_backward:
                predecessor, wait = progress.stretch, offset
            elif sliced:
                predecessor, wait = ready, delay
            else:
                predecessor, wait = dag.mark_stretch[p], dag.mark_offset[p]
            add_messages(
                dag, used, arena, sync_units[row, PUSH_FIRST], sync_units[row, PUSH_COUNT],
                predecessor, wait, progress, sync_arrival[n], urgency,
            )  # fmt: skip
        elif operation == PULL and sliced:  # after the update of the slice
            add_messages(
                dag, used, arena, sync_units[row, PULL_FIRST], sync_units[row, PULL_COUNT],
                updated, no_time, progress, sync_arrival[n], urgency,
            )  # fmt: skip
        elif operation == PULL:  # after all that the server has done
            add_messages(
                dag, used, arena, sync_units[row, PULL_FIRST], sync_units[row, PULL_COUNT],
                progress.stretch, offset, progress, sync_arrival[n], 0,
            )  # fmt: skip
        if operation != UPDATE:
            continue
        for k in range(
            sync_units[row, UPDATE_FIRST],
            sync_units[row, UPDATE_FIRST] + sync_units[row, UPDATE_COUNT],
        ):
            d, ns = computes[k, 0], computes[k, 1]
            arrival = sync_arrival[after, d] if after >= 0 else -1
            if sliced:
                updated[d] = add_unordered_task(dag, used, d, ns, progress)
                if arrival >= 0:
                    add_edge(dag, used, arrival, updated[d], 0)
                if p >= 0 and sync_units[row, UPDATER_IS_HOLDER] and ready[d] >= 0:
                    add_edge(dag, used, ready[d], updated[d], delay[d])
                continue
            # The update is part of the device's order: wait for the gradients, then compute.
            if arrival >= 0 and nodes[arrival, AWAITED] == 0:
                await_arrival(dag, used, arrival, d, progress)
            if fold:  # the same as add_compute, without the cost of a call
                ns += receive_overhead[d]
                receive_overhead[d] = 0
                offset[d] += ns
                load[d] += ns
            else:
                add_compute(dag, used, d, ns, progress)
