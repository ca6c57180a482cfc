"""The event loop of the simulation, JIT-compiled: tasks wait for others and hold at most two resources.

Resources are devices and links, by number. A task is ready when all tasks that it waits for have ended.
Every resource serves tasks in the order of (ready time, number): first come, first served, ties by number.
The order never depends on how the loop got there, so that the fast simulation (fast/loop.py) can give
exactly the same times.

A task with an urgency has no place in this order. If a resource that it needs is busy, it tries again when
the resource is free, and then the most urgent of all tasks that try at this time gets the resource. A task
without resources ends as soon as it is ready, before any resource chooses its next task. Times are integer
nanoseconds, so nothing depends on the order of additions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

TASK_MASK = 2**32 - 1  # the bits of a heap key that hold the task's number


@njit(cache=True)
def run_tasks(
    duration: np.ndarray,  # by task, nanoseconds
    first_resource: np.ndarray,  # by task, a resource or -1
    second_resource: np.ndarray,  # by task, another resource or -1
    wait_count: np.ndarray,  # by task, how many others it waits for
    pointer: np.ndarray,  # successors of task i are successor[pointer[i]:pointer[i + 1]]
    successor: np.ndarray,
    resources: int,  # the number of devices and links
    urgency: np.ndarray,  # by task, 0: first come, first served; else the smaller goes first
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By task: its start, its end, and the task that it waited for last (-1: none)."""
    count = len(duration)
    start = np.zeros(count, np.int64)
    end = np.full(count, -1, np.int64)
    cause = np.full(count, -1, np.int32)
    ready = np.zeros(count, np.int64)
    waits_left = wait_count.copy()
    free_from = np.zeros(resources + 1, np.int64)  # by resource
    last_task = np.full(resources + 1, -1, np.int32)  # by resource: the task that held it last
    heap_time = np.empty(count + 1, np.int64)
    heap_task = np.empty(count + 1, np.int64)  # keys: urgency, then the number of the task
    size = 0
    stack = np.empty(count + 1, np.int32)  # ready tasks without resources
    depth = 0
    for i in range(count):
        if waits_left[i] == 0:
            if first_resource[i] < 0 and second_resource[i] < 0:
                stack[depth] = i
                depth += 1
            else:
                # 0: ready at the start
                size = _push(heap_time, heap_task, size, 0, _heap_key(urgency[i], i))
    while size or depth:
        if depth:
            depth -= 1
            task = stack[depth]
        else:
            task = heap_task[0] & TASK_MASK
            now = heap_time[0]
            size = _pop(heap_time, heap_task, size)
            if urgency[task]:
                free_at = now
                for resource in (first_resource[task], second_resource[task]):
                    if resource >= 0 and free_from[resource] > free_at:
                        free_at = free_from[resource]
                        cause[task] = last_task[resource]
                if free_at > now:  # it tries again then, together with all other waiting tasks
                    size = _push(
                        heap_time, heap_task, size, free_at, _heap_key(urgency[task], task)
                    )
                    continue
        begin = ready[task]
        for resource in (first_resource[task], second_resource[task]):
            if resource >= 0 and free_from[resource] > begin:
                begin = free_from[resource]
                cause[task] = last_task[resource]
        finish = begin + duration[task]
        start[task], end[task] = begin, finish
        for resource in (first_resource[task], second_resource[task]):
            if resource >= 0:
                free_from[resource] = finish
                last_task[resource] = task
        for k in range(pointer[task], pointer[task + 1]):
            other = successor[k]
            if finish >= ready[other]:
                ready[other] = finish
                cause[other] = task
            waits_left[other] -= 1
            if waits_left[other] == 0:
                if first_resource[other] < 0 and second_resource[other] < 0:
                    stack[depth] = other
                    depth += 1
                else:
                    size = _push(
                        heap_time, heap_task, size, ready[other], _heap_key(urgency[other], other)
                    )
    return start, end, cause


@njit(cache=True)
def _heap_key(urgency: int, task: int) -> int:
    """One integer that sorts by urgency, then by number."""
    return (urgency << 32) | task


@njit(cache=True)
def _push(times: np.ndarray, tasks: np.ndarray, size: int, time: int, task: int) -> int:
    """Adds (time, task) to a binary heap in two arrays; returns its new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and tasks[parent] < task):
            break
        times[at], tasks[at] = times[parent], tasks[parent]
        at = parent
    times[at], tasks[at] = time, task
    return size + 1


@njit(cache=True)
def _pop(times: np.ndarray, tasks: np.ndarray, size: int) -> int:
    """Removes the smallest entry of the heap; returns its new size."""
    size -= 1
    time, task = times[size], tasks[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child]
            or (times[right] == times[child] and tasks[right] < tasks[child])
        ):
            child = right
        if time < times[child] or (time == times[child] and task < tasks[child]):
            break
        times[at], tasks[at] = times[child], tasks[child]
        at = child
    times[at], tasks[at] = time, task
    return size
