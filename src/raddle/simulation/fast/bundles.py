"""Finds the bundles of the current plan, and when their gradients are complete, JIT-compiled.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

A slice is a range of rows of a parameter; a bundle is slices of several parameters that are synchronised
together. It is a row of Arena.sync_units, whose members are the numbers of parameters (arrays.py).
slots.sync_units[p] is a slot: the first row of parameter p there, and the number of its rows.
"""

# p: parameter, d: device

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.simulation.fast.arrays import (
    BUNDLED_COUNT,
    BUNDLED_FIRST,
    Arena,
    Array,
    Slots,
    StepDag,
    SyncSettings,
)


@njit(cache=True)
def bundles_of_parameters(
    settings: SyncSettings, slots: Slots, arena: Arena
) -> tuple[Array, Array, Array]:
    """Returns first_bundle and bundles of SyncFacts, and the number of slices of each bundle.

    The bundles of parameter p are bundles[first_bundle[p]:first_bundle[p + 1]].
    """
    parameters = len(slots.sync_units)
    first_bundle, sync_units = np.zeros(parameters + 1, np.int64), arena.sync_units
    if not settings.sliced:
        return first_bundle, np.zeros(0, np.int64), np.zeros(0, np.int64)
    missing = np.zeros(len(sync_units), np.int64)
    for p in range(parameters):
        for row in range(slots.sync_units[p, 0], slots.sync_units[p, 0] + slots.sync_units[p, 1]):
            missing[row] = sync_units[row, BUNDLED_COUNT]
            for k in range(missing[row]):
                first_bundle[arena.members[sync_units[row, BUNDLED_FIRST] + k, 0] + 1] += 1
    for p in range(parameters):
        first_bundle[p + 1] += first_bundle[p]
    bundles, filled = np.empty(first_bundle[parameters], np.int64), first_bundle.copy()
    for p in range(parameters):
        for row in range(slots.sync_units[p, 0], slots.sync_units[p, 0] + slots.sync_units[p, 1]):
            for k in range(missing[row]):
                member = arena.members[sync_units[row, BUNDLED_FIRST] + k, 0]
                bundles[filled[member]] = row
                filled[member] += 1
    return first_bundle, bundles, missing


@njit(cache=True)
def gradients_ready(
    row: int, devices: int, arena: Arena, dag: StepDag, ready: Array, delay: Array
) -> None:
    """Writes by device when the gradients of a bundle are complete: the node, and the delay after it.

    row: the bundle's row of Arena.sync_units. ready, delay: out. The nodes of a device are numbered in
    their order.
    """
    unit = arena.sync_units[row]
    ready[:], delay[:] = -1, 0
    for k in range(unit[BUNDLED_FIRST], unit[BUNDLED_FIRST] + unit[BUNDLED_COUNT]):
        p = arena.members[k, 0]
        for d in range(devices):
            stretch, offset = dag.mark_stretch[p, d], dag.mark_offset[p, d]
            if stretch > ready[d] or (stretch == ready[d] and offset > delay[d]):
                ready[d], delay[d] = stretch, offset
