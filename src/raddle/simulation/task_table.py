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
    first_resource: Array  # a resource or -1
    second_resource: Array
    instruction: Array  # that the task belongs to
    device: Array  # where it ends: that computes, or receives
    source: Array  # where it comes from, of messages; else the device
    nbytes: Array  # that cross devices
    urgency: Array  # of messages that may overtake others; 0 of all else
    wait_count: Array
    pointer: Array
    successor: Array
    resources: int


COLUMNS = (
    "duration",
    "first_resource",
    "second_resource",
    "instruction",
    "device",
    "source",
    "nbytes",
    "urgency",
)


class TaskTable:
    """Tasks so far, where each instruction ends, and what each device has done last."""

    def __init__(self, devices: int) -> None:
        self.devices, self.count = devices, 0
        self.columns: dict[str, list[Array]] = {name: [] for name in COLUMNS}
        self.edges: list[tuple[Array, Array]] = []
        self.ends: list[Array] = []  # by instruction: the task that ends it on each device, or -1
        self.last_task = np.full(devices, NONE, np.int64)  # done last on each device
        self.receive_overhead: dict[
            int, Array
        ] = {}  # by instruction and device, what taking in its messages takes

    def add_tasks(
        self, instruction: int, duration: Array, first: Array, second: Array, device: Array,
        source: Array, nbytes: Array, urgency: int = 0,
    ) -> Array:  # fmt: skip
        """Adds tasks of an instruction; their numbers."""
        size = len(duration)
        number, rank = np.full(size, instruction), np.full(size, urgency)
        columns = (duration, first, second, number, device, source, nbytes, rank)
        for name, values in zip(COLUMNS, columns, strict=True):
            self.columns[name].append(np.asarray(values, np.int64))
        ids = np.arange(self.count, self.count + size)
        self.count += size
        return ids

    def add_device_tasks(self, instruction: int, devices: Array, duration: Array) -> Array:
        """Adds a task on each device, which waits for nothing yet."""
        none, nothing = np.full(len(devices), NONE), np.zeros(len(devices))
        return self.add_tasks(instruction, duration, devices, none, devices, devices, nothing)

    def add_empty_tasks(self, instruction: int, devices: Array) -> Array:
        """Adds a task on each device that takes no time and holds nothing: others meet there."""
        none, nothing = np.full(len(devices), NONE), np.zeros(len(devices))
        return self.add_tasks(instruction, nothing, none, none, devices, devices, nothing)

    def add_dependencies(self, tasks: Array, predecessors: Array) -> None:
        """Each task waits for the one beside it; -1 is none."""
        real = predecessors >= 0
        if real.any():
            self.edges.append((tasks[real], predecessors[real]))

    def append_to_device_order(self, devices: Array, tasks: Array) -> None:
        """Tasks come after all that their devices did before."""
        self.add_dependencies(tasks, self.last_task[devices])
        self.last_task[devices] = tasks

    def wait_for_instructions(self, tasks: Array, deps: Iterable[int], devices: Array) -> None:
        """Each task waits for instructions, where they end on the device beside it."""
        for dep in deps:
            self.add_dependencies(tasks, self.ends[dep][devices])

    def add_compute(
        self, instruction: int, devices: Array, duration: Array, deps: Iterable[int], *,
        unordered: bool = False,
    ) -> None:  # fmt: skip
        """A task on each device, after what the device did before, unless it stands apart."""
        deps = tuple(deps)
        ids = self.add_device_tasks(
            instruction, devices, duration + self._take_receive_overhead(devices, deps)
        )
        if not unordered:
            self.append_to_device_order(devices, ids)
        self.wait_for_instructions(ids, deps, devices)
        self._set_ends(devices, ids)

    def _take_receive_overhead(self, devices: Array, deps: Iterable[int]) -> Array:
        """The first instruction that needs a message receives it, if no earlier one did."""
        total = np.zeros(len(devices), np.int64)
        for dep in deps:
            if dep in self.receive_overhead:
                total += self.receive_overhead[dep][devices]
                self.receive_overhead[dep][devices] = 0
        return total

    def end_with_messages(self, instruction: int, targets: Array, ids: Array) -> None:
        """What arrives on a device in several messages is there with the last of them."""
        devices, inverse, counts = np.unique(targets, return_inverse=True, return_counts=True)
        ends = np.full(len(devices), NONE, np.int64)
        single = counts[inverse] == 1
        ends[inverse[single]] = ids[single]
        several = np.flatnonzero(counts > 1)
        if len(several):
            joins = self.add_empty_tasks(instruction, devices[several])
            ends[several] = joins
            join_of = np.full(len(devices), NONE)
            join_of[several] = joins
            waiting = join_of[inverse]
            self.edges.append((waiting[waiting >= 0], ids[waiting >= 0]))
        self._set_ends(devices, ends)

    def _set_ends(self, devices: Array, tasks: Array) -> None:
        ends = np.full(self.devices, NONE, np.int64)
        ends[devices] = tasks
        self.ends.append(ends)

    def build(self, resources: int) -> Tasks:
        """All of them, as arrays."""
        column = {name: np.concatenate(blocks) for name, blocks in self.columns.items()}
        later, earlier = (
            np.concatenate([e[k] for e in self.edges]) if self.edges else np.empty(0, np.int64)
            for k in (0, 1)
        )
        order = np.argsort(earlier, kind="stable")
        return Tasks(
            **column,
            wait_count=np.bincount(later, minlength=self.count),
            pointer=np.concatenate([[0], np.cumsum(np.bincount(earlier, minlength=self.count))]),
            successor=later[order].astype(np.int32),
            resources=resources,
        )
