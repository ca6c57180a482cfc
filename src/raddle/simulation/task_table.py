"""Collects the simulation's tasks, and the tasks that each of them waits for, in a growing table.

The builders (compute_tasks.py, message_tasks.py, collective_tasks.py) add the tasks of one instruction
after the other, in the program's order; `build` then gives the arrays that the engine simulates.

A task holds up to two resources for its duration: a device, or links. The task of a message ends when the
message arrives, a latency after it has released its links. Resources are numbered: first the devices, then
the links of the cluster. Tasks are numbered in the order in which they are added. Most tasks on a device
belong to its order: each waits for the one before it. Updates of slices of a parameter, and the device time
to send and receive slices, are "unordered": they run whenever the device is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
NONE = -1  # no resource, no task


@dataclass(frozen=True)
class Tasks:
    """All tasks of a program, as arrays over the tasks."""

    duration: Array  # nanoseconds for which it holds its resources
    latency: Array  # nanoseconds from then until it ends: a message is in flight; else 0
    first_resource: Array  # a device or link that it holds, or -1
    second_resource: Array  # another link, or -1
    instruction: Array  # the number of its instruction
    device: Array  # the device that computes or receives
    source: Array  # the device that sends a message; else equal to `device`
    nbytes: Array  # bytes sent to another device
    urgency: Array  # 0: resources serve it in order; else it may overtake, the smallest first
    wait_count: Array  # number of tasks that it waits for
    pointer: Array  # the tasks that wait for task i are successor[pointer[i]:pointer[i + 1]]
    successor: Array
    resources: int  # number of devices and links
    in_order: Array  # by resource: whether each task that holds it waits for the one before


# The fields of Tasks that `TaskTable.add_tasks` gets; `build` computes the others.
COLUMNS = (
    "duration",
    "latency",
    "first_resource",
    "second_resource",
    "instruction",
    "device",
    "source",
    "nbytes",
    "urgency",
)


class TaskTable:
    """The tasks that were added so far.

    In its methods, `instruction` is the number of an instruction, `deps` are the numbers of instructions
    that it waits for, and arguments that are arrays have an element for each task.
    """

    def __init__(self, devices: int) -> None:
        self.devices, self.count = devices, 0
        self.columns: dict[str, list[Array]] = {name: [] for name in COLUMNS}
        self.edges: list[tuple[Array, Array]] = []  # (tasks, the tasks that they wait for)
        self.ends: list[Array] = []  # by instruction: the task that ends it on each device, or -1
        self.last_task = np.full(devices, NONE, np.int64)  # by device: the last one in its order
        self.ordered_count = np.zeros(devices, np.int64)  # by device: tasks in its order
        # By instruction, then by device: nanoseconds of device time to receive its messages. They are
        # added to the next task that waits for the messages, and are then set to 0 here.
        self.receive_overhead: dict[int, Array] = {}

    def add_tasks(
        self, instruction: int, duration: Array, first: Array, second: Array, device: Array,
        source: Array, nbytes: Array, urgency: int = 0, latency: Array | None = None,
    ) -> Array:  # fmt: skip
        """Adds tasks of an instruction and returns their numbers. The other arguments: see `Tasks`.

        latency: None if they have none.
        """
        size = len(duration)
        number, urgencies = np.full(size, instruction), np.full(size, urgency)
        in_flight = np.zeros(size) if latency is None else latency
        columns = (
            duration, in_flight, first, second, number, device, source, nbytes, urgencies,
        )  # fmt: skip
        for name, values in zip(COLUMNS, columns, strict=True):
            self.columns[name].append(np.asarray(values, np.int64))
        ids = np.arange(self.count, self.count + size)
        self.count += size
        return ids

    def add_device_tasks(self, instruction: int, devices: Array, duration: Array) -> Array:
        """Adds a task that holds the device, for each device; it waits for nothing yet."""
        no_link, zeros = np.full(len(devices), NONE), np.zeros(len(devices))
        return self.add_tasks(instruction, duration, devices, no_link, devices, devices, zeros)

    def add_empty_tasks(self, instruction: int, devices: Array) -> Array:
        """Adds a task without duration or resources for each device.

        It ends when all tasks that it waits for have ended; the caller adds these dependencies.
        """
        no_link, zeros = np.full(len(devices), NONE), np.zeros(len(devices))
        return self.add_tasks(instruction, zeros, no_link, no_link, devices, devices, zeros)

    def add_dependencies(self, tasks: Array, predecessors: Array) -> None:
        """Lets tasks[i] wait for the task predecessors[i], or for nothing if that is -1."""
        waits = predecessors >= 0
        if waits.any():
            self.edges.append((tasks[waits], predecessors[waits]))

    def append_to_device_order(self, devices: Array, tasks: Array) -> None:
        """Lets tasks[i] run on devices[i] after all earlier tasks of the device's order."""
        self.add_dependencies(tasks, self.last_task[devices])
        self.last_task[devices] = tasks
        np.add.at(self.ordered_count, devices, 1)

    def wait_for_instructions(self, tasks: Array, deps: Iterable[int], devices: Array) -> None:
        """Lets tasks[i] wait until the instructions `deps` have ended on devices[i]."""
        for dep in deps:
            self.add_dependencies(tasks, self.ends[dep][devices])

    def add_compute(
        self, instruction: int, devices: Array, duration: Array, deps: Iterable[int], *,
        unordered: bool = False,
    ) -> None:  # fmt: skip
        """Adds the tasks of an instruction that computes, one for each device.

        They follow the device's order, unless they are `unordered`. The device time to receive the messages
        of `deps` is added to their duration.
        """
        deps = tuple(deps)
        ids = self.add_device_tasks(
            instruction, devices, duration + self._take_receive_overhead(devices, deps)
        )
        if not unordered:
            self.append_to_device_order(devices, ids)
        self.wait_for_instructions(ids, deps, devices)
        self._set_ends(devices, ids)

    def _take_receive_overhead(self, devices: Array, deps: Iterable[int]) -> Array:
        """Returns by device the nanoseconds to receive messages of `deps`, if they are not received yet."""
        total = np.zeros(len(devices), np.int64)
        for dep in deps:
            if dep in self.receive_overhead:
                total += self.receive_overhead[dep][devices]
                self.receive_overhead[dep][devices] = 0
        return total

    def end_with_messages(self, instruction: int, targets: Array, ids: Array) -> None:
        """Records that an instruction ends on each target device with its last message.

        targets: by message, the device that receives it; ids: by message, its task.
        """
        # inverse: by message, the place of its target in `devices`; counts: by device, its messages
        devices, inverse, counts = np.unique(targets, return_inverse=True, return_counts=True)
        ends = np.full(len(devices), NONE, np.int64)
        single = counts[inverse] == 1
        ends[inverse[single]] = ids[single]
        several = np.flatnonzero(counts > 1)
        if len(several):
            # A join waits for all messages of a device.
            joins = self.add_empty_tasks(instruction, devices[several])
            ends[several] = joins
            join_of = np.full(len(devices), NONE)
            join_of[several] = joins
            waiting = join_of[inverse]
            self.edges.append((waiting[waiting >= 0], ids[waiting >= 0]))
        self._set_ends(devices, ends)

    def _set_ends(self, devices: Array, tasks: Array) -> None:
        """Appends to `ends` the tasks that end the current instruction on `devices`."""
        ends = np.full(self.devices, NONE, np.int64)
        ends[devices] = tasks
        self.ends.append(ends)

    def build(self, resources: int) -> Tasks:
        """Returns all tasks as arrays; resources: the number of devices and links."""
        column = {name: np.concatenate(blocks) for name, blocks in self.columns.items()}
        # By edge: the task that waits, and the task that it waits for.
        later, earlier = (
            np.concatenate([e[k] for e in self.edges]) if self.edges else np.empty(0, np.int64)
            for k in (0, 1)
        )
        order = np.argsort(earlier, kind="stable")
        first = column["first_resource"]
        held_count = np.bincount(first[first >= 0], minlength=resources)  # by resource
        # A device serves its tasks in order if all tasks that hold it belong to its order.
        in_order = np.zeros(resources, np.bool_)
        in_order[: self.devices] = held_count[: self.devices] == self.ordered_count
        return Tasks(
            **column,
            wait_count=np.bincount(later, minlength=self.count),
            pointer=np.concatenate([[0], np.cumsum(np.bincount(earlier, minlength=self.count))]),
            successor=later[order].astype(np.int32),
            resources=resources,
            in_order=in_order,
        )
