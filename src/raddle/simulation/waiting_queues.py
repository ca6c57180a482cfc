"""Keeps the tasks that wait for resources: a queue for each pair of resources, JIT-compiled (waiting.py).

A key is `urgency << 32 | number`; the smallest goes first. The number of a task that waits is its arrival:
such tasks are numbered in the order in which they became ready.

Most tasks come after all that wait in their queue; these are in a list. A task that does not come after the
last one of the list, as it is more urgent, is in a pairing heap (heaps.py). The first task of the queue is
the first of the list or of the heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raddle.simulation.heaps import (
    CHILD,
    NO_TASK,
    SIBLING,
    TASK_KEY,
    allocates_nothing,
    meld,
    without_first,
)

Array = np.ndarray

LOWER_BITS = 2**32 - 1
NO_PAIR = -1
NO_KEY = 2**62  # of an empty queue; larger than all keys
FREE_FROM, FIRST_PAIR, HAS_ENTRY, CANDIDATE = range(4)  # columns of Waiting.resources
# Columns of Waiting.pairs. What `waiting._next_candidate` reads comes first, so it is one cache line.
PAIR_KEY, PARTNER, NEXT, GAVE_WAY, FIRST, LIST, LAST, HEAP, RESOURCES, PAIR_COLUMNS = range(10)
# Columns of Waiting.tasks, after those of heaps.py.
TASK, GAVE_WAY_BEFORE, TASK_COLUMNS = 3, 4, 5  # fmt: skip
# Indices into Waiting.counts: entries of `later` and of `due`; the time that `due` belongs to; tasks that
# have waited; pairs; the task that became ready last, or -1, its time and its key; rows of `tasks` that
# were in use; the first of them that is free again, or -1.
LATER, DUE, TIME, ARRIVALS, PAIRS, LAST_READY, LAST_TIME, LAST_KEY, ROWS, UNUSED_ROW = range(10)


class Waiting(NamedTuple):
    """The state of the rule: tasks that are or will be ready, and the queues of pairs of resources."""

    # Two binary heaps. `later`, by time: tasks that become ready (the item is -1 - task), and resources
    # that are watched and become free (resource << 32 | resource: those that a task holds, or one and the
    # missing one). `due`, by key: ready tasks (-1), and resources that are free and have a candidate. All
    # entries of one time go from `later` to `due` before a task starts, so their order does not matter.
    later: Array
    due: Array
    # By task that is or becomes ready: the next one of its *series*, or -1. The tasks of a series become
    # ready at the same time, in the order of their keys; only its first task is in a heap.
    next_ready: Array
    # By resource: when the last task that holds or reserves it ends; the first pair that watches it, or -1;
    # whether it has an entry in `later`; its candidate. The last row stands for a missing resource.
    resources: Array
    # By pair: the key of its first task, or NO_KEY; the resource that it does not watch; the next pair that
    # watches the same resource, or -1; how often its first task gave way; the rows of its first task, of
    # the first and the last task of its list, and of the first task of its heap, or -1; its resources.
    pairs: Array
    pair_numbers: Array  # a hash table: 1 + the number of a pair, or 0
    # By row: key, the links of list and heap, task, how often it gave way when it was first before. A row
    # is used again when its task has started, so that few rows are touched.
    tasks: Array
    counts: Array


@allocates_nothing
def pair_of(waiting: Waiting, one: int, other: int) -> int:
    """Returns the number of a pair of resources; numbers it if no task has waited for it before."""
    pairs, numbers = waiting.pairs, waiting.pair_numbers
    # A hash table with open addressing; the two factors spread the pairs over it.
    at = (one * 40503 + other * 30011) & (len(numbers) - 1)
    while numbers[at]:
        pair = numbers[at] - 1
        if pairs[pair, RESOURCES] == one << 32 | other:
            return int(pair)
        at = (at + 1) & (len(numbers) - 1)
    pair = waiting.counts[PAIRS]
    waiting.counts[PAIRS] += 1
    numbers[at] = pair + 1
    pairs[pair, PAIR_KEY], pairs[pair, RESOURCES] = NO_KEY, one << 32 | other
    pairs[pair, LIST] = pairs[pair, HEAP] = NO_TASK
    return int(pair)


@allocates_nothing
def append(waiting: Waiting, pair: int, task: int, urgency: int) -> None:
    """Puts a task into the queue of a pair."""
    tasks, pairs, counts = waiting.tasks, waiting.pairs, waiting.counts
    key = (urgency << 32) | counts[ARRIVALS]
    counts[ARRIVALS] += 1
    row = counts[UNUSED_ROW]
    if row < 0:
        row = counts[ROWS]
        counts[ROWS] += 1
    else:
        counts[UNUSED_ROW] = tasks[row, SIBLING]
    tasks[row, TASK_KEY], tasks[row, TASK], tasks[row, GAVE_WAY_BEFORE] = key, task, 0
    tasks[row, CHILD] = tasks[row, SIBLING] = NO_TASK
    if pairs[pair, PAIR_KEY] == NO_KEY:
        pairs[pair, LIST] = pairs[pair, LAST] = row
    elif pairs[pair, LIST] >= 0 and tasks[pairs[pair, LAST], TASK_KEY] < key:
        tasks[pairs[pair, LAST], SIBLING] = row
        pairs[pair, LAST] = row
    else:
        pairs[pair, HEAP] = meld(tasks, pairs[pair, HEAP], row)
    if key < pairs[pair, PAIR_KEY]:
        if pairs[pair, PAIR_KEY] != NO_KEY:  # the task is before the one that was first
            tasks[pairs[pair, FIRST], GAVE_WAY_BEFORE] = pairs[pair, GAVE_WAY]
        pairs[pair, PAIR_KEY], pairs[pair, FIRST], pairs[pair, GAVE_WAY] = key, row, 0


@allocates_nothing
def take_first(waiting: Waiting, pair: int) -> int:
    """Removes the first task of a pair's queue and returns it."""
    tasks, pairs, counts = waiting.tasks, waiting.pairs, waiting.counts
    row = pairs[pair, FIRST]
    if row == pairs[pair, LIST]:
        pairs[pair, LIST] = tasks[row, SIBLING]
    else:
        pairs[pair, HEAP] = without_first(tasks, row)
    tasks[row, SIBLING], counts[UNUSED_ROW] = counts[UNUSED_ROW], row
    first, of_heap = pairs[pair, LIST], pairs[pair, HEAP]
    if first < 0 or (of_heap >= 0 and tasks[of_heap, TASK_KEY] < tasks[first, TASK_KEY]):
        first = of_heap
    pairs[pair, FIRST] = first
    if first < 0:
        pairs[pair, PAIR_KEY] = NO_KEY
    else:
        pairs[pair, PAIR_KEY] = tasks[first, TASK_KEY]
        pairs[pair, GAVE_WAY] = tasks[first, GAVE_WAY_BEFORE]
    return int(tasks[row, TASK])
