"""Simulates a program; the resulting timeline gives step time, breakdown, critical path and bytes sent.

A task is one device's share of an instruction, or one of its messages. It holds a device or links. These
are numbered as resources: first the devices, then the links (task_table.py, tasks.py).
"""

# d: a device; s, t, n: source, target and bytes of a message

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Program, Update
from raddle.simulation.engine import run_tasks
from raddle.simulation.nanoseconds import MAX_SECONDS
from raddle.simulation.task_table import Tasks
from raddle.simulation.tasks import build_tasks

Array = np.ndarray


def simulate(
    program: Program,
    cluster: Cluster,
    profile: Profile | None = None,
    *,
    overtaking: bool = False,
    look: Callable[[], None] = lambda: None,
) -> Timeline:
    """Simulates a program on a described cluster; equal arguments give equal timelines.

    profile: measured times of operators; None: their times come from a roofline model. overtaking:
    all-reduces of slices of parameters start in the order of their urgency, instead of the program's order.
    look: is called for every instruction; a search looks at its clock there, and may raise an exception.
    """
    if program.plan.devices > len(cluster.devices):
        raise InputError(
            f"the plan needs {program.plan.devices} devices, '{cluster.name}' has {len(cluster.devices)}."
        )
    tasks = build_tasks(program, cluster, profile, overtaking=overtaking, look=look)
    if float((tasks.duration + tasks.latency).sum(dtype=np.float64)) > 1e9 * MAX_SECONDS:
        raise InputError(
            f"the tasks would take more than {MAX_SECONDS:g} s: "
            f"look for a wrong number in '{cluster.name}'."
        )
    start, end, cause = run_tasks(
        tasks.duration,
        tasks.latency,
        tasks.first_resource,
        tasks.second_resource,
        tasks.wait_count,
        tasks.pointer,
        tasks.successor,
        tasks.resources,
        tasks.in_order,
        tasks.urgency,
    )
    assert (end >= 0).all(), "a task waits for itself"
    return Timeline(program, cluster, tasks, start, end, cause)


@dataclass(frozen=True)
class Timeline:
    """The start and the end of every task, in nanoseconds."""

    program: Program
    cluster: Cluster
    tasks: Tasks
    start: Array  # by task
    end: Array  # by task; of a message, when it has arrived
    cause: Array  # by task, the task that it waited for last, or -1

    @property
    def total_seconds(self) -> float:
        """The seconds of the whole simulation, all steps together."""
        return float(self.end.max()) / 1e9

    @cached_property
    def step_ends(self) -> list[int]:
        """By step, when its last update ends; when its last task ends if the program has no updates."""
        # By instruction: its step, and whether it is an update. chosen: by task, whether it counts.
        steps = np.array([i.key.step for i in self.program.instructions])
        updates = np.array([isinstance(i, Update) for i in self.program.instructions])
        instruction = self.tasks.instruction  # by task
        chosen = updates[instruction] if updates.any() else np.ones(len(instruction), bool)
        return [
            int(self.end[chosen & (steps[instruction] == s)].max())
            for s in range(self.program.plan.steps)
        ]

    @property
    def step_seconds(self) -> float:
        """The seconds of a step in the steady state: those of the last step.

        Where steps overlap (asynchronous pipelines), the average over the middle third of the steps,
        without warm-up and drain.
        """
        ends = [0, *self.step_ends]
        if is_asynchronous(self.program.plan) and len(ends) > 4:
            # Several overlapping steps may end at almost the same time, so single differences are uneven:
            # the mean is taken. It leaves out the first third of the steps and the last third.
            third = (len(ends) - 1) // 3
            return (ends[-1 - third] - ends[third]) / (len(ends) - 1 - 2 * third) / 1e9
        return (ends[-1] - ends[-2]) / 1e9

    @cached_property
    def compute_seconds(self) -> Array:
        """By device, the seconds in which it computes in an average step; host overhead counts too."""
        return self._seconds_by_device(self.tasks.first_resource < self.program.plan.devices)

    def _seconds_by_device(self, chosen: Array) -> Array:
        """Returns by device the seconds of the chosen tasks in an average step; chosen: by task."""
        chosen = chosen & (self.tasks.first_resource >= 0)
        total = np.bincount(
            self.tasks.device[chosen],
            weights=self.tasks.duration[chosen].astype(np.float64),
            minlength=self.program.plan.devices,
        )
        return total / 1e9 / self.program.plan.steps

    @property
    def imbalance(self) -> float:
        """The longest compute time of a device, divided by the mean over the devices."""
        busy = self.compute_seconds
        return float(busy.max() / busy.mean())

    @property
    def comm_bytes(self) -> int:
        """Bytes sent between devices in an average step."""
        return int(self.tasks.nbytes.sum()) // self.program.plan.steps

    def bytes_by_pair(self) -> dict[tuple[int, int], int]:
        """Returns by (source, target) the bytes of point-to-point messages in all steps."""
        pairs: dict[tuple[int, int], int] = {}
        is_message = (self.tasks.source != self.tasks.device) & (self.tasks.nbytes > 0)
        for s, t, n in zip(
            self.tasks.source[is_message],
            self.tasks.device[is_message],
            self.tasks.nbytes[is_message],
            strict=True,
        ):
            pairs[int(s), int(t)] = pairs.get((int(s), int(t)), 0) + int(n)
        return pairs

    def breakdown(self) -> list[dict[str, float]]:
        """Returns by device the seconds of an average step: "compute", "exposed" communication, "idle".

        Communication is exposed while the device does not compute and a message to it, or its part of a
        collective, is being sent, is in flight or waits for a link.
        """
        total = self.step_ends[-1] / 1e9 / self.program.plan.steps
        return [
            {
                "compute": float(self.compute_seconds[d]),
                "exposed": exposed,
                "idle": max(0.0, total - float(self.compute_seconds[d]) - exposed),
            }
            for d, exposed in enumerate(self._exposed_seconds())
        ]

    @cached_property
    def ready(self) -> Array:
        """By task, when all tasks that it waits for have ended."""
        ready = np.zeros(len(self.end), np.int64)
        # By dependency: the end of the task that is waited for.
        before = np.repeat(self.end, np.diff(self.tasks.pointer))
        np.maximum.at(ready, self.tasks.successor, before)
        return ready

    def _exposed_seconds(self) -> list[float]:
        """Returns by device the seconds of exposed communication in an average step; see `breakdown`."""
        tasks, devices = self.tasks, self.program.plan.devices
        compute = (tasks.first_resource >= 0) & (tasks.first_resource < devices)
        comm = tasks.first_resource >= devices
        since = np.where(comm, self.ready, self.start)  # a message counts from when it is ready
        result = []
        # busy: nanoseconds in which the device computes; either: in which it computes or a message to it
        # is on its way
        for d in range(devices):
            on_device = tasks.device == d
            busy = _union_length(self.start[on_device & compute], self.end[on_device & compute])
            either = _union_length(
                since[on_device & (compute | comm)], self.end[on_device & (compute | comm)]
            )
            result.append((either - busy) / 1e9 / self.program.plan.steps)
        return result

    def critical_path(self) -> list[int]:
        """Returns the tasks of the critical path, in order: each waited for the one before it."""
        path = [int(self.end.argmax())]
        while self.cause[path[-1]] >= 0:
            path.append(int(self.cause[path[-1]]))
        return path[::-1]

    def critical_nanoseconds(self, path: list[int]) -> Array:
        """Returns by task of the critical path the nanoseconds until the next starts (last: until it ends).

        Their sum is the time of the whole simulation. A message that the next task waits for counts until
        it arrives. A message whose link the next task waits for counts until it releases the link.
        """
        return np.diff(np.append(self.start[path], self.end[path[-1]]))


def _union_length(start: Array, end: Array) -> int:
    """Returns the total length that intervals cover together."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    # reach: by interval, the latest end of all intervals up to it
    start, reach = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[start[0]], reach[:-1]])
    return int((reach - np.maximum(start, before)).clip(min=0).sum())
