"""Keeps the slots of the current plan: which rows of the store it uses, and the load of resources.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

A resource is a device or a link; they are numbered in this order. A row is, for example, the device and the
nanoseconds of a computation. A slot is (first row, number of rows) of a table of the store (arrays.py,
store.py). A sync unit is a parameter or a slice that is synchronised at once. A gather brings the
parameters of a block of operators (ZeRO-3). Changing a plan means to point some slots to other rows. `Undo`
records the old slots, so that a search can revert a change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raddle.simulation.fast.arrays import PULL_FIRST, PUSH_FIRST, UPDATE_FIRST, Slots
from raddle.simulation.fast.graph_index import GraphIndex
from raddle.simulation.fast.store import RowArray, RowStore, Slot

Array = np.ndarray

# Columns of a sync unit that hold the first row of a slot (the next column: the number of rows), and the
# table of the store that the slot points to.
_SYNC_ROWS = ((PUSH_FIRST, "messages"), (UPDATE_FIRST, "computes"), (PULL_FIRST, "messages"))


class Undo:
    """The old contents of everything that a change to a plan has overwritten."""

    def __init__(self) -> None:
        # (what was changed, the index in it, the old content there)
        self._old: list[tuple[Any, Any, Any]] = []

    def set(self, target: list[Any], index: int, value: Any) -> None:
        """Sets target[index] and saves its old value."""
        self._old.append((target, index, target[index]))
        target[index] = value

    def set_slot(self, slots: Array, index: int, old: Slot, slot: Slot) -> None:
        """Sets slots[index] and saves its old slot."""
        self._old.append((slots, index, old))
        slots[index] = slot

    def save(self, array: Array) -> None:
        """Saves a whole array that is about to change."""
        self._old.append((array, slice(None), array.copy()))

    def restore(self) -> None:
        """Reverts all changes, the last one first."""
        for target, index, old in reversed(self._old):
            target[index] = old


class PlanRows:
    """The slots of the current plan.

    load: by resource, its busy nanoseconds; held_bytes: by device, bytes of parameters and saved values.
    """

    def __init__(self, index: GraphIndex, devices: int, links: int) -> None:
        ops, values, parameters = len(index.op_number), len(index.value_number), len(index.users)
        # In the order of the fields of Slots: 5 by operator (forward to partial_gradient), 2 by value
        # (activation, gradient), and the gathers.
        sizes = [ops] * 5 + [values] * 2 + [len(index.gathers)]
        table = np.zeros((sum(sizes), 2), np.int64)
        parts = np.split(table, np.cumsum(sizes)[:-1])
        self.slots = Slots(*(table, *parts, np.zeros((parameters, 2), np.int64)))
        # Slots of rows (device, bytes) in memory: first those of operators, then those of parameters.
        self.held_bytes_slots = np.zeros((ops + parameters, 2), np.int64)
        self.load = np.zeros(devices + links, np.int64)
        self.held_bytes = np.zeros(devices, np.int64)

    def clear(self) -> None:
        """Empties all slots."""
        for array in (
            self.slots.table,
            self.slots.sync_units,
            self.held_bytes_slots,
            self.load,
            self.held_bytes,
        ):
            array[:] = 0

    def set_slot(
        self, undo: Undo, store: RowStore, slots: Array, index: int, slot: Slot, rows: RowArray,
        times: int = 1,
    ) -> None:  # fmt: skip
        """Points slots[index] to other rows, and updates load and held bytes.

        rows: the table of the store that has the rows. times: how often a step of the plan uses them.
        """
        old = int(slots[index, 0]), int(slots[index, 1])
        if old != slot:
            undo.set_slot(slots, index, old, slot)
            self._add_load(store, rows, old, -times)
            self._add_load(store, rows, slot, times)

    def _add_load(self, store: RowStore, rows: RowArray, slot: Slot, times: int) -> None:
        """Adds the nanoseconds of the rows of a slot, times `times`, to `load`; bytes to `held_bytes`."""
        if not slot[1]:
            return
        data = rows.data[slot[0] : slot[0] + slot[1]]
        if rows is store.computes:  # columns: device, nanoseconds
            np.add.at(self.load, data[:, 0], times * data[:, 1])
        elif rows is store.sizes:  # columns: device, bytes
            np.add.at(self.held_bytes, data[:, 0], times * data[:, 1])
        elif rows is store.sync_units:
            for row in data.tolist():
                for at, rows_name in _SYNC_ROWS:
                    if row[at + 1]:
                        self._add_load(
                            store, getattr(store, rows_name), (row[at], row[at + 1]), times
                        )
        else:
            for column in (3, 4):  # messages: their first and second link; column 2: nanoseconds
                uses_link = data[:, column] >= 0
                np.add.at(self.load, data[uses_link, column], times * data[uses_link, 2])
