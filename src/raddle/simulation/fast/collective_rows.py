"""Adds collectives to the task graph of a step, with what they wait for, JIT-compiled.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

Collectives of gradients are rows of the step script; a gather of a block (ZeRO-3) is a row of the tape, the
list of a graph's instructions. A node is a task of the graph (StepDag); collective_nodes.py writes those of
a collective. A sync unit is a parameter, a bundle of slices or a block that is synchronised at once; its
row has the sets of rings that sum and gather it, and its bytes (column 0 of `arena.amounts`: those that are
summed, column 2: those that are gathered). `slots.sync_units[p, 0]` is the row of parameter p. Mark p says
when the gradient of parameter p is complete on a device: in which stretch, and how long after the start of
the stretch (arrays.py).
"""

# n: row of the step script, p: parameter, d: device, g: set of rings, k: ring of a set
# j: place in `members`

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.program.step_script import AFTER_ROW, FIRST_MEMBER, GROUP, MEMBER_COUNT, SUBJECT
from raddle.simulation.fast.arrays import (
    AMOUNT_FIRST,
    GATHER_SET,
    REPLICA_SET,
    RING_SET,
    Arena,
    Array,
    DeviceProgress,
    HostOverhead,
    Rings,
    Slots,
    StepDag,
    SyncSettings,
)
from raddle.simulation.fast.collective_nodes import add_collective


@njit(cache=True)
def write_sum(
    n: int, settings: SyncSettings, slots: Slots, arena: Arena, rings: Rings,
    overhead: HostOverhead, dag: StepDag, used: Array, progress: DeviceProgress, rows: Array,
    members: Array,
) -> None:  # fmt: skip
    """Writes row n of the step script: an all-reduce of a bundle or bucket, or a block's reduce-scatter.

    An all-reduce of a bundle and a reduce-scatter wait for all that their devices did before. An all-reduce
    of a bucket waits only for its gradients or, with `after_backward`, for the whole backward (with host
    overhead: for all that its devices did before).
    """
    if settings.sliced:  # a slice has one ring, so one row of amounts
        unit = arena.sync_units[rows[n, SUBJECT]]
        amounts = arena.amounts[unit[AMOUNT_FIRST] : unit[AMOUNT_FIRST] + 1, 0].copy()
        add_collective(
            dag, used, rings, overhead, unit[RING_SET], progress.stretch, progress.offset, amounts,
            progress, dag.sync_arrival[n], -1,
        )  # fmt: skip
        return
    g, devices = rows[n, GROUP], len(progress.stretch)
    predecessor, delay = np.full(devices, -1, np.int32), np.zeros(devices, np.int64)
    total = np.zeros(rings.set_at[g + 1] - rings.set_at[g], np.int64)
    for j in range(rows[n, FIRST_MEMBER], rows[n, FIRST_MEMBER] + rows[n, MEMBER_COUNT]):
        p = members[j]
        first = arena.sync_units[slots.sync_units[p, 0], AMOUNT_FIRST]
        for k in range(len(total)):  # here a ring of the set
            total[k] += arena.amounts[first + k, 0]
        for d in range(devices):
            # Keep the gradient that is complete last on device d: the nodes of a device are numbered in
            # their order.
            stretch, offset = dag.mark_stretch[p, d], dag.mark_offset[p, d]
            if stretch > predecessor[d] or (stretch == predecessor[d] and offset > delay[d]):
                predecessor[d], delay[d] = stretch, offset
    if settings.after_backward:  # after all that the devices have computed
        predecessor, delay = progress.stretch, progress.offset
    add_collective(
        dag, used, rings, overhead, g, predecessor, delay, total, progress, dag.sync_arrival[n], -1
    )


@njit(cache=True)
def write_gather(
    unit: int, arena: Arena, rings: Rings, overhead: HostOverhead, dag: StepDag, used: Array,
    progress: DeviceProgress, arrival: Array,
) -> None:  # fmt: skip
    """Writes the gather of a block (ZeRO-3); unit: its row of Arena.sync_units."""
    g, first = arena.sync_units[unit, GATHER_SET], arena.sync_units[unit, AMOUNT_FIRST]
    amounts = arena.amounts[first : first + rings.set_at[g + 1] - rings.set_at[g], 2].copy()
    add_collective(
        dag,
        used,
        rings,
        overhead,
        g,
        progress.stretch,
        progress.offset,
        amounts,
        progress,
        arrival,
        -1,
    )


@njit(cache=True)
def write_block_gather(
    n: int, slots: Slots, arena: Arena, rings: Rings, overhead: HostOverhead, dag: StepDag,
    used: Array, progress: DeviceProgress, rows: Array, members: Array,
) -> None:  # fmt: skip
    """Writes row n of the step script, the gather of a block after its update (ZeRO-2)."""
    first_member = members[rows[n, FIRST_MEMBER]]
    g = arena.sync_units[slots.sync_units[first_member, 0], GATHER_SET]
    amounts = np.zeros(rings.set_at[g + 1] - rings.set_at[g], np.int64)
    for j in range(rows[n, FIRST_MEMBER], rows[n, FIRST_MEMBER] + rows[n, MEMBER_COUNT]):
        first = arena.sync_units[slots.sync_units[members[j], 0], AMOUNT_FIRST]
        for k in range(len(amounts)):
            amounts[k] += arena.amounts[first + k, 2]
    add_collective(
        dag, used, rings, overhead, g, progress.stretch, progress.offset, amounts, progress,
        dag.sync_arrival[n], -1,
    )  # fmt: skip


@njit(cache=True)
def write_replica_sum(
    n: int, slots: Slots, arena: Arena, rings: Rings, overhead: HostOverhead, dag: StepDag,
    used: Array, progress: DeviceProgress, rows: Array, members: Array,
) -> None:  # fmt: skip
    """Writes row n of the step script, the all-reduce of a block's shards over their replicas (HSDP).

    It waits for the reduce-scatter of the block. Where a device has no shard with replicas, its result is
    that of the reduce-scatter.
    """
    first_unit = slots.sync_units[members[rows[n, FIRST_MEMBER]], 0]
    g, scatter_set = (
        arena.sync_units[first_unit, REPLICA_SET],
        arena.sync_units[first_unit, RING_SET],
    )
    amounts = np.zeros(rings.set_at[g + 1] - rings.set_at[g], np.int64)
    scatters = rings.set_at[scatter_set + 1] - rings.set_at[scatter_set]  # their rows come first
    for j in range(rows[n, FIRST_MEMBER], rows[n, FIRST_MEMBER] + rows[n, MEMBER_COUNT]):
        first = arena.sync_units[slots.sync_units[members[j], 0], AMOUNT_FIRST] + scatters
        for k in range(len(amounts)):
            amounts[k] += arena.amounts[first + k, 0]
    after, arrival = rows[n, AFTER_ROW], dag.sync_arrival[n]
    add_collective(
        dag, used, rings, overhead, g, progress.stretch, progress.offset, amounts, progress, arrival,
        after,
    )  # fmt: skip
    for d in range(len(arrival)):
        if arrival[d] < 0:
            arrival[d] = dag.sync_arrival[after, d]
