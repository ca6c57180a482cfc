"""The event loop of the simulation, JIT-compiled: tasks wait for others and hold at most two resources.

Resources are devices and links, by number. A task is ready when all tasks that it waits for have ended.
Which ready task gets a resource is decided in waiting.py; the order never depends on how the loop got
there, so that the fast simulation (fast/loop.py) can give exactly the same times. A task without
resources ends as soon as it is ready, before any resource chooses its next task. Times are integer
nanoseconds, so nothing depends on the order of additions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.simulation.waiting import add_ready, nobody_waits, take_next


@njit(cache=True)
def run_tasks(
    duration: np.ndarray,  # by task, nanoseconds for which it holds its resources
    latency: np.ndarray,  # by task, nanoseconds from then until it ends
    first_resource: np.ndarray,  # by task, a resource or -1
    second_resource: np.ndarray,  # by task, another resource or -1
    wait_count: np.ndarray,  # by task, how many others it waits for
    pointer: np.ndarray,  # successors of task i are successor[pointer[i]:pointer[i + 1]]
    successor: np.ndarray,
    resources: int,  # the number of devices and links
    urgency: np.ndarray,  # by task: of those that wait, the smallest goes first
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By task: its start, its end, and the task that it waited for last (-1: none).

    That task ended, or released a resource, when this one started.
    """
    count = len(duration)
    start = np.zeros(count, np.int64)
    end = np.full(count, -1, np.int64)
    cause = np.full(count, -1, np.int32)
    ready = np.zeros(count, np.int64)
    waits_left = wait_count.copy()
    last_task = np.full(resources + 1, -1, np.int32)  # by resource: the task that held it last
    waiting = nobody_waits(count, resources)
    stack = np.empty(count + 1, np.int32)  # ready tasks without resources
    depth = 0
    for i in range(count):
        if waits_left[i] == 0:
            if first_resource[i] < 0 and second_resource[i] < 0:
                stack[depth] = i
                depth += 1
            else:
                add_ready(waiting, 0, urgency[i], i)
    while True:
        if depth:
            depth -= 1
            task = int(stack[depth])
            begin = ready[task]
        else:
            task, begin, blocker = take_next(
                waiting, duration, first_resource, second_resource, urgency
            )
            if task < 0:
                return start, end, cause
            if blocker >= 0:
                cause[task] = last_task[blocker]
            for resource in (first_resource[task], second_resource[task]):
                if resource >= 0:
                    last_task[resource] = task
        finish = begin + duration[task] + latency[task]
        start[task], end[task] = begin, finish
        for k in range(pointer[task], pointer[task + 1]):
            later = successor[k]
            if finish >= ready[later]:
                ready[later] = finish
                cause[later] = task
            waits_left[later] -= 1
            if waits_left[later] == 0:
                if first_resource[later] < 0 and second_resource[later] < 0:
                    stack[depth] = later
                    depth += 1
                else:
                    add_ready(waiting, ready[later], urgency[later], later)
