"""Which task starts next, and when: the rule by which tasks share devices and links, JIT-compiled.

A task holds one or two resources (devices or links) while it runs. It starts as soon as all of them are
free. Of several tasks that could start at the same time, the one with the smallest urgency starts first,
then the one that has been ready for longest, then the one with the smallest number. So no resource is idle
while a ready task needs only idle resources.

A task with two resources could wait for ever if they were never free at the same time. When a resource
becomes free, the first task in its order *gives way* if its other resource is busy. After MAX_GIVE_WAY
times it does not give way again but reserves both resources until it starts.

Two loops use this file: engine.py for the tasks of a program, fast/loop.py for the nodes of a step. Times
are integer nanoseconds.

Waiting tasks that need the same resources (a *pair*; the second may be missing) are in one queue. When a
resource becomes free, only the first tasks of its pairs have to be looked at.
"""

# r: resource

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit

Array = np.ndarray
Function = TypeVar("Function", bound=Callable[..., Any])

MAX_GIVE_WAY = 16
NEW = 2**31  # the lower 32 bits of the key of a task that has not waited: NEW + its number
LOWER_BITS = 2**32 - 1
NO_TASK, NO_RESOURCE = -1, -1
TIME, KEY, RESOURCE = range(3)  # columns of Waiting.entries
FREE_FROM, WAITERS, HAS_ENTRY, FIRST_PAIR = range(4)  # columns of Waiting.resources
ONE, OTHER, FIRST_TASK, NEXT_OF_ONE, NEXT_OF_OTHER = range(5)  # columns of Waiting.pairs
TASK_KEY, CHILD, SIBLING, GAVE_WAY = range(4)  # columns of Waiting.tasks
SIZE, ARRIVALS, PAIRS = range(3)  # indices into Waiting.counts


class Waiting(NamedTuple):
    """Tasks that are or will be ready, and the queues of pairs of resources.

    A key is `urgency << 32 | number`; the smallest goes first. The number of a task that waits is its
    arrival: such tasks are numbered in the order in which they became ready.
    """

    # A binary heap by (TIME, KEY). An entry is a task that becomes ready (RESOURCE is -1), or a resource
    # whose queues have to be looked at: because it becomes free (KEY is -1 - RESOURCE), or because the task
    # with this key may start. A resource has at most one entry.
    entries: Array
    # By resource: when the last task that holds or reserves it ends; how many tasks wait for it; whether it
    # has an entry; its first pair, or -1.
    resources: Array
    # By pair: its resources; the first task of its queue, or -1; the next pair of either resource, or -1.
    pairs: Array
    # By waiting task: its key; the links of a pairing heap, which each queue is; how often it gave way.
    tasks: Array
    counts: Array  # entries; tasks that have waited; pairs


@njit(cache=True)
def nobody_waits(tasks: int, resources: int) -> Waiting:
    """The state at the start, with room for this many tasks and resources."""
    by_resource = np.zeros((resources, 4), np.int64)
    by_resource[:, FIRST_PAIR] = -1
    return Waiting(
        np.empty((tasks + resources + 1, 3), np.int64), by_resource, np.empty((tasks, 5), np.int64),
        np.empty((tasks, 4), np.int64), np.zeros(3, np.int64),
    )  # fmt: skip


def allocates_nothing(function: Function) -> Function:
    """Compiles a function that allocates nothing.

    numba then does not count references to its arrays, which takes longer than all the rest of this file:
    190 ns a task, where 40 are enough.
    """
    return njit(cache=True, _nrt=False)(function)  # type: ignore[call-overload,no-any-return]


@allocates_nothing
def add_ready(waiting: Waiting, time: int, urgency: int, task: int) -> None:
    """Adds a task that becomes ready at `time`."""
    key = (int(urgency) << 32) | (NEW + int(task))
    _push(waiting.entries, waiting.counts, time, key, NO_RESOURCE)


@allocates_nothing
def take_next(
    waiting: Waiting, duration: Array, first: Array, second: Array, urgency: Array
) -> tuple[int, int, int]:
    """The next task that starts, its start, and the resource that it waited for last (-1: none).

    The arrays are by task; first, second: its resources, or -1. The task is -1 if no task is left. The
    resources are held until the task ends.
    """
    entries, resources, counts = waiting.entries, waiting.resources, waiting.counts
    while counts[SIZE]:
        now, key, r = entries[0, TIME], entries[0, KEY], entries[0, RESOURCE]
        _pop(entries, counts)
        if r == NO_RESOURCE:
            task = (key & LOWER_BITS) - NEW
            one, other = int(first[task]), int(second[task])
            if (one < 0 or resources[one, FREE_FROM] <= now) and (
                other < 0 or resources[other, FREE_FROM] <= now
            ):
                _hold(waiting, one, other, now + duration[task])
                return task, now, NO_RESOURCE
            _wait(waiting, task, one, other, int(urgency[task]))
            continue
        resources[r, HAS_ENTRY] = 0
        if resources[r, FREE_FROM] > now:  # another task has taken it
            _add_entry(waiting, r)
            continue
        blocked, startable = _first_of_queues(waiting, r, now)
        if key < 0 and blocked >= 0 and _must_start(waiting, blocked):
            task = waiting.pairs[blocked, FIRST_TASK]
            one, other = waiting.pairs[blocked, ONE], waiting.pairs[blocked, OTHER]
            busy = other if one == r else one
            begin = resources[busy, FREE_FROM]
            _leave(waiting, blocked)
            _hold(waiting, one, other, begin + duration[task])
            return task, begin, busy
        if startable < 0:  # its tasks wait for other resources too, whose entries will look at them
            continue
        task = waiting.pairs[startable, FIRST_TASK]
        task_key = waiting.tasks[task, TASK_KEY]
        if counts[SIZE] and entries[0, TIME] == now and entries[0, KEY] < task_key:
            resources[r, HAS_ENTRY] = 1  # others come first at this time
            _push(entries, counts, now, task_key, r)
            continue
        one, other = waiting.pairs[startable, ONE], waiting.pairs[startable, OTHER]
        _leave(waiting, startable)
        _hold(waiting, one, other, now + duration[task])
        return task, now, r
    return NO_TASK, 0, NO_RESOURCE


@allocates_nothing
def _must_start(waiting: Waiting, pair: int) -> bool:
    """Lets the first task of a queue give way once more; whether it has done so too often."""
    task = waiting.pairs[pair, FIRST_TASK]
    waiting.tasks[task, GAVE_WAY] += 1
    return bool(waiting.tasks[task, GAVE_WAY] > MAX_GIVE_WAY)


@allocates_nothing
def _hold(waiting: Waiting, one: int, other: int, until: int) -> None:
    """Lets a task hold its resources."""
    if one >= 0:
        waiting.resources[one, FREE_FROM] = until
        _add_entry(waiting, one)
    if other >= 0:
        waiting.resources[other, FREE_FROM] = until
        _add_entry(waiting, other)


@allocates_nothing
def _add_entry(waiting: Waiting, r: int) -> None:
    """Lets a busy resource look at its queues when it is free, if tasks wait for it."""
    resources = waiting.resources
    if resources[r, WAITERS] and not resources[r, HAS_ENTRY]:
        resources[r, HAS_ENTRY] = 1
        _push(waiting.entries, waiting.counts, resources[r, FREE_FROM], -1 - r, r)


@allocates_nothing
def _wait(waiting: Waiting, task: int, one: int, other: int, urgency: int) -> None:
    """Puts a task into the queue of its pair of resources."""
    tasks, counts = waiting.tasks, waiting.counts
    if one < 0:
        one, other = other, one
    tasks[task, TASK_KEY] = (urgency << 32) | counts[ARRIVALS]
    tasks[task, CHILD] = tasks[task, SIBLING] = NO_TASK
    tasks[task, GAVE_WAY] = 0
    counts[ARRIVALS] += 1
    pair = _pair_of(waiting, one, other)
    waiting.pairs[pair, FIRST_TASK] = _meld(tasks, waiting.pairs[pair, FIRST_TASK], task)
    for r in (one, other):
        if r >= 0:
            waiting.resources[r, WAITERS] += 1
            _add_entry(waiting, r)


@allocates_nothing
def _leave(waiting: Waiting, pair: int) -> None:
    """Removes the first task of a queue."""
    pairs = waiting.pairs
    pairs[pair, FIRST_TASK] = _without_first(waiting.tasks, pairs[pair, FIRST_TASK])
    waiting.resources[pairs[pair, ONE], WAITERS] -= 1
    if pairs[pair, OTHER] >= 0:
        waiting.resources[pairs[pair, OTHER], WAITERS] -= 1


@allocates_nothing
def _pair_of(waiting: Waiting, one: int, other: int) -> int:
    """The number of a pair of resources, which is new if nobody has waited for it before."""
    resources, pairs = waiting.resources, waiting.pairs
    pair = resources[one, FIRST_PAIR]
    while pair >= 0:
        if pairs[pair, ONE] == one:
            if pairs[pair, OTHER] == other:
                return int(pair)
            pair = pairs[pair, NEXT_OF_ONE]
        else:
            pair = pairs[pair, NEXT_OF_OTHER]
    pair = waiting.counts[PAIRS]
    waiting.counts[PAIRS] += 1
    pairs[pair, ONE], pairs[pair, OTHER], pairs[pair, FIRST_TASK] = one, other, NO_TASK
    pairs[pair, NEXT_OF_ONE] = resources[one, FIRST_PAIR]
    resources[one, FIRST_PAIR] = pair
    if other >= 0:
        pairs[pair, NEXT_OF_OTHER] = resources[other, FIRST_PAIR]
        resources[other, FIRST_PAIR] = pair
    return int(pair)


@allocates_nothing
def _first_of_queues(waiting: Waiting, r: int, now: int) -> tuple[int, int]:
    """Looks at the first tasks of the pairs of a free resource; returns two pairs, or -1 for none.

    The first is that of the task which goes first, if its other resource is busy. The second is that of the
    first task which may start now.
    """
    resources, pairs, tasks = waiting.resources, waiting.pairs, waiting.tasks
    first, startable = (-1), (-1)
    first_key = startable_key = 2**62
    pair = resources[r, FIRST_PAIR]
    while pair >= 0:
        is_one = pairs[pair, ONE] == r
        task = pairs[pair, FIRST_TASK]
        if task >= 0:
            key = tasks[task, TASK_KEY]
            other = pairs[pair, OTHER] if is_one else pairs[pair, ONE]
            if key < startable_key and (other < 0 or resources[other, FREE_FROM] <= now):
                startable, startable_key = pair, key
            if key < first_key:
                first, first_key = pair, key
        pair = pairs[pair, NEXT_OF_ONE] if is_one else pairs[pair, NEXT_OF_OTHER]
    return (-1 if first == startable else first), startable


@allocates_nothing
def _meld(tasks: Array, a: int, b: int) -> int:
    """Joins two pairing heaps, given by their first tasks (-1: empty); returns the first of both."""
    if a < 0:
        return b
    if b < 0:
        return a
    if tasks[b, TASK_KEY] < tasks[a, TASK_KEY]:
        a, b = b, a
    tasks[b, SIBLING] = tasks[a, CHILD]
    tasks[a, CHILD] = b
    return a


@allocates_nothing
def _without_first(tasks: Array, task: int) -> int:
    """The first task of a pairing heap after its first task `task` is removed, or -1."""
    # Melds the children in pairs, then all pairs, from the last to the first.
    melded, child = int(NO_TASK), tasks[task, CHILD]
    while child >= 0:
        neighbour, following = tasks[child, SIBLING], int(NO_TASK)
        tasks[child, SIBLING] = NO_TASK
        if neighbour >= 0:
            following = tasks[neighbour, SIBLING]
            tasks[neighbour, SIBLING] = NO_TASK
        pair = _meld(tasks, child, neighbour)
        tasks[pair, SIBLING] = melded
        melded, child = pair, following
    root = int(NO_TASK)
    while melded >= 0:
        following = tasks[melded, SIBLING]
        tasks[melded, SIBLING] = NO_TASK
        root = _meld(tasks, root, melded)
        melded = following
    return root


@allocates_nothing
def _push(entries: Array, counts: Array, time: int, key: int, r: int) -> None:
    """Adds an entry to the binary heap."""
    at = counts[SIZE]
    counts[SIZE] = at + 1
    while at > 0:
        parent = (at - 1) >> 1
        if not _is_before(time, key, entries, parent):
            break
        _copy(entries, parent, at)
        at = parent
    entries[at, TIME], entries[at, KEY], entries[at, RESOURCE] = time, key, r


@allocates_nothing
def _pop(entries: Array, counts: Array) -> None:
    """Removes the smallest entry of the binary heap."""
    size = counts[SIZE] - 1
    counts[SIZE] = size
    time, key, r = entries[size, TIME], entries[size, KEY], entries[size, RESOURCE]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and _is_before(entries[right, TIME], entries[right, KEY], entries, child):
            child = right
        if not _is_before(entries[child, TIME], entries[child, KEY], entries, size):
            break
        _copy(entries, child, at)
        at = child
    entries[at, TIME], entries[at, KEY], entries[at, RESOURCE] = time, key, r


@allocates_nothing
def _is_before(time: int, key: int, entries: Array, at: int) -> bool:
    """Whether an entry with this time and key comes before the entry `at`."""
    return bool(time < entries[at, TIME] or (time == entries[at, TIME] and key < entries[at, KEY]))


@allocates_nothing
def _copy(entries: Array, source: int, target: int) -> None:
    """Copies an entry; one number after the other, which is faster than a row."""
    entries[target, TIME] = entries[source, TIME]
    entries[target, KEY] = entries[source, KEY]
    entries[target, RESOURCE] = entries[source, RESOURCE]
