"""The event loop of the simulation, JIT-compiled: tasks wait for others and hold at most two resources.

Resources are devices and links, by number. A task is ready when all tasks that it waits for have ended.
waiting.py decides which ready task gets a resource. Its decision depends only on the tasks' times,
urgencies and numbers, so that the fast simulation (fast/loop.py) gives exactly the same times. A task
without resources ends as soon as it is ready, before any resource chooses its next task. Times are integer
nanoseconds, so no sum depends on the order of additions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.simulation.waiting import NO_RESOURCE, add_ready, nobody_waits, take_next


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
    in_order: np.ndarray,  # by resource: whether each task that holds it waits for the one before
    urgency: np.ndarray,  # by task: of those that wait, the smallest goes first
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs all tasks; returns by task its start, its end, and the task that it waited for last (-1: none).

    A task starts when the task that it waited for last ends or releases a resource.
    """
    count = len(duration)
    start = np.zeros(count, np.int64)
    end = np.full(count, -1, np.int64)
    cause = np.full(count, -1, np.int32)
    ready = np.zeros(count, np.int64)
    waits_left = wait_count.copy()
    last_task = np.full(resources + 1, -1, np.int32)  # by resource: the task that held it last
    waiting = nobody_waits(count, resources)
    first = _without_resources_in_order(first_resource, in_order)
    # Ready tasks that never wait for a resource, from position `taken` to `added`. They are taken in the
    # order in which they were added; their times do not depend on this order.
    queue = np.empty(count, np.int32)
    taken, added = 0, 0
    for i in range(count):
        if waits_left[i] == 0:
            if first[i] < 0 and second_resource[i] < 0:
                queue[added] = i
                added += 1
            else:
                add_ready(waiting, 0, urgency[i], i)
    while True:
        if taken < added:
            task = int(queue[taken])
            taken += 1
            begin = ready[task]
        else:
            task, begin, blocker = take_next(waiting, duration, first, second_resource, urgency)
            if task < 0:
                return start, end, cause
            if blocker >= 0:
                cause[task] = last_task[blocker]
            for resource in (first[task], second_resource[task]):
                if resource >= 0:
                    last_task[resource] = task
        finish = begin + duration[task] + latency[task]
        start[task], end[task] = begin, finish
        for k in range(pointer[task], pointer[task + 1]):
            later = successor[k]
            # Of several that end last, the one with the largest number is the cause.
            if finish > ready[later] or (finish == ready[later] and task > cause[later]):
                ready[later] = finish
                cause[later] = task
            waits_left[later] -= 1
            if waits_left[later] == 0:
                if first[later] < 0 and second_resource[later] < 0:
                    queue[added] = later
                    added += 1
                else:
                    add_ready(waiting, ready[later], urgency[later], later)


@njit(cache=True)
def _without_resources_in_order(first_resource: np.ndarray, in_order: np.ndarray) -> np.ndarray:
    """Returns by task its first resource, or -1 if this resource serves its tasks in a fixed order.

    A task with such a resource waits for the task before it, so the resource is free when the task is
    ready, and the loop need not choose.
    """
    first = first_resource.copy()
    for i in range(len(first)):
        if first[i] >= 0 and in_order[first[i]]:
            first[i] = NO_RESOURCE
    return first
