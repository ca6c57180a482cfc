"""What a plan points to, the loads of resources that follow, and how a change is taken back."""

from __future__ import annotations

from typing import Any

import numpy as np

from raddle.simulation.fast.arrays import PULL_AT, PUSH_AT, UPDATE_AT, Slots
from raddle.simulation.fast.outline import Outline
from raddle.simulation.fast.store import Rows, Slot, Store

Array = np.ndarray

_SYNCED = ((PUSH_AT, "messages"), (UPDATE_AT, "computes"), (PULL_AT, "messages"))


class Undo:
    """What was there before a change."""

    def __init__(self) -> None:
        self._old: list[tuple[Any, Any, Any]] = []

    def set(self, target: list[Any], index: int, value: Any) -> None:
        self._old.append((target, index, target[index]))
        target[index] = value

    def point(self, slots: Array, index: int, old: Slot, slot: Slot) -> None:
        self._old.append((slots, index, old))
        slots[index] = slot

    def keep(self, array: Array) -> None:
        """Remembers all of an array that is about to change."""
        self._old.append((array, slice(None), array.copy()))

    def take_back(self) -> None:
        for target, index, old in reversed(self._old):
            target[index] = old


class Pointers:
    """Slots of operators, values and parameters; loads by resource, bytes held by device."""

    def __init__(self, outline: Outline, devices: int, links: int) -> None:
        ops, values, parameters = len(outline.number), len(outline.value), len(outline.users)
        sizes = [ops] * 5 + [values] * 2 + [len(outline.pulls)]
        table = np.zeros((sum(sizes), 2), np.int64)
        parts = np.split(table, np.cumsum(sizes)[:-1])
        self.slots = Slots(*(table, *parts, np.zeros((parameters, 2), np.int64)))
        self.held_slots = np.zeros((ops + parameters, 2), np.int64)
        self.load = np.zeros(devices + links, np.int64)
        self.held = np.zeros(devices, np.int64)

    def forget(self) -> None:
        """Nothing is pointed to."""
        for array in (self.slots.table, self.slots.synced, self.held_slots, self.load, self.held):
            array[:] = 0

    def point(
        self, undo: Undo, store: Store, slots: Array, index: int, slot: Slot, rows: Rows,
        times: int = 1,
    ) -> None:  # fmt: skip
        """Points a slot to other rows; with it goes the load that they put on resources, so many times."""
        old = int(slots[index, 0]), int(slots[index, 1])
        if old != slot:
            undo.point(slots, index, old, slot)
            self._carry(store, rows, old, -times)
            self._carry(store, rows, slot, times)

    def _carry(self, store: Store, rows: Rows, slot: Slot, times: int) -> None:
        if not slot[1]:
            return
        own = rows.data[slot[0] : slot[0] + slot[1]]
        if rows is store.computes:
            np.add.at(self.load, own[:, 0], times * own[:, 1])
        elif rows is store.sizes:
            np.add.at(self.held, own[:, 0], times * own[:, 1])
        elif rows is store.synced:
            for row in own.tolist():
                for at, of in _SYNCED:
                    if row[at + 1]:
                        self._carry(store, getattr(store, of), (row[at], row[at + 1]), times)
        else:
            for column in (3, 4):
                held = own[:, column] >= 0
                np.add.at(self.load, own[held, column], times * own[held, 2])
