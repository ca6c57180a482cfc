"""Collects tasks and what they wait for, block by block, in the order of a program's instructions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
NONE = -1  # no resource, no task


@dataclass(frozen=True)
class Tasks:
    """Arrays over tasks; resources are the devices, then the links of the cluster."""

    duration: Array  # nanoseconds
    first: Array  # a resource or -1
    second: Array
    instruction: Array  # that the task belongs to
    device: Array  # where it ends: that computes, or receives
    source: Array  # where it comes from, of messages; else the device
    nbytes: Array  # that cross devices
    urgency: Array  # of messages that may overtake others; 0 of all else
    waits: Array
    pointer: Array
    successor: Array
    resources: int


COLUMNS = ("duration", "first", "second", "instruction", "device", "source", "nbytes", "urgency")


class Rows:
    """Tasks so far, where each instruction ends, and what each device has done last."""

    def __init__(self, devices: int) -> None:
        self.devices, self.count = devices, 0
        self.columns: dict[str, list[Array]] = {name: [] for name in COLUMNS}
        self.edges: list[tuple[Array, Array]] = []
        self.places: list[Array] = []  # by instruction: the task that ends it on each device, or -1
        self.last = np.full(devices, NONE, np.int64)  # done last on each device
        self.due: dict[
            int, Array
        ] = {}  # by instruction and device, what taking in its messages takes

    def block(
        self, instruction: int, duration: Array, first: Array, second: Array, device: Array,
        source: Array, nbytes: Array, urgency: int = 0,
    ) -> Array:  # fmt: skip
        """Adds tasks of an instruction; their numbers."""
        size = len(duration)
        number, rank = np.full(size, instruction), np.full(size, urgency)
        given = (duration, first, second, number, device, source, nbytes, rank)
        for name, values in zip(COLUMNS, given, strict=True):
            self.columns[name].append(np.asarray(values, np.int64))
        ids = np.arange(self.count, self.count + size)
        self.count += size
        return ids

    def on(self, instruction: int, devices: Array, duration: Array) -> Array:
        """Adds a task on each device, which waits for nothing yet."""
        none, nothing = np.full(len(devices), NONE), np.zeros(len(devices))
        return self.block(instruction, duration, devices, none, devices, devices, nothing)

    def point(self, instruction: int, devices: Array) -> Array:
        """Adds a task on each device that takes no time and holds nothing: others meet there."""
        none, nothing = np.full(len(devices), NONE), np.zeros(len(devices))
        return self.block(instruction, nothing, none, none, devices, devices, nothing)

    def wait(self, tasks: Array, on: Array) -> None:
        """Each task waits for the one beside it; -1 is none."""
        real = on >= 0
        if real.any():
            self.edges.append((tasks[real], on[real]))

    def follow(self, devices: Array, tasks: Array) -> None:
        """Tasks come after all that their devices did before."""
        self.wait(tasks, self.last[devices])
        self.last[devices] = tasks

    def after(self, tasks: Array, deps: Iterable[int], devices: Array) -> None:
        """Each task waits for instructions, where they end on the device beside it."""
        for dep in deps:
            self.wait(tasks, self.places[dep][devices])

    def compute(
        self, instruction: int, devices: Array, duration: Array, deps: Iterable[int], *,
        apart: bool = False,
    ) -> None:  # fmt: skip
        """A task on each device, after what the device did before, unless it stands apart."""
        deps = tuple(deps)
        ids = self.on(instruction, devices, duration + self._taken_in(devices, deps))
        if not apart:
            self.follow(devices, ids)
        self.after(ids, deps, devices)
        self._place(devices, ids)

    def _taken_in(self, devices: Array, deps: Iterable[int]) -> Array:
        """The first instruction that needs a message receives it, if no earlier one did."""
        total = np.zeros(len(devices), np.int64)
        for dep in deps:
            if dep in self.due:
                total += self.due[dep][devices]
                self.due[dep][devices] = 0
        return total

    def join(self, instruction: int, targets: Array, ids: Array) -> None:
        """What arrives on a device in several messages is there with the last of them."""
        devices, inverse, counts = np.unique(targets, return_inverse=True, return_counts=True)
        ends = np.full(len(devices), NONE, np.int64)
        single = counts[inverse] == 1
        ends[inverse[single]] = ids[single]
        several = np.flatnonzero(counts > 1)
        if len(several):
            joins = self.point(instruction, devices[several])
            ends[several] = joins
            slot = np.full(len(devices), NONE)
            slot[several] = joins
            waiting = slot[inverse]
            self.edges.append((waiting[waiting >= 0], ids[waiting >= 0]))
        self._place(devices, ends)

    def _place(self, devices: Array, tasks: Array) -> None:
        where = np.full(self.devices, NONE, np.int64)
        where[devices] = tasks
        self.places.append(where)

    def tasks(self, resources: int) -> Tasks:
        """All of them, as arrays."""
        column = {name: np.concatenate(blocks) for name, blocks in self.columns.items()}
        later, earlier = (
            np.concatenate([e[k] for e in self.edges]) if self.edges else np.empty(0, np.int64)
            for k in (0, 1)
        )
        order = np.argsort(earlier, kind="stable")
        return Tasks(
            **column,
            waits=np.bincount(later, minlength=self.count),
            pointer=np.concatenate([[0], np.cumsum(np.bincount(earlier, minlength=self.count))]),
            successor=later[order].astype(np.int32),
            resources=resources,
        )
