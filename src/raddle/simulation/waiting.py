"""Decides which task starts next, and when: the rule by which tasks share devices and links, JIT-compiled.

A task holds one or two resources (devices or links) for its duration. It starts as soon as all of them are
free. Of several tasks that could start at the same time, the one with the smallest urgency starts first,
then the one that has been ready for longest, then the one with the smallest number. So no resource is idle
while a ready task needs only idle resources.

A task with two resources could wait for ever if they were never free at the same time. When a resource
becomes free, its first waiting task *gives way* if its other resource is busy; then the task waits for that
one. After MAX_GIVE_WAY times it does not give way again but reserves both resources until it starts.

Two loops use this file: engine.py for the tasks of a program, fast/loop.py for the nodes of a step. Times
are integer nanoseconds.

Waiting tasks that need the same resources (a *pair*; the second may be missing) are in one queue. A pair
*watches* one of its resources that is busy, at first the one that becomes free later. When a resource
becomes free, only the pairs that watch it have to be looked at. A pair whose other resource is busy then
watches the other one.

`one` and `other` are the two resources of a pair or a task; -1 stands for a missing one.
"""

# r: resource

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.simulation.heaps import (
    CHILD,
    KEY,
    NO_TASK,
    RESOURCE,
    SIBLING,
    TASK_KEY,
    TIME,
    allocates_nothing,
    is_before,
    meld,
    pop,
    push,
    replace_first,
    without_first,
)

Array = np.ndarray

MAX_GIVE_WAY = 16  # after these, a task reserves both of its resources
NEW = 2**31  # the lower 32 bits of the key of a task that has not waited: NEW + its number
LOWER_BITS = 2**32 - 1
NO_RESOURCE, NO_PAIR = -1, -1
FREE_FROM, FIRST_PAIR, HAS_ENTRY, CANDIDATE = range(4)  # columns of Waiting.resources
ONE, OTHER, FIRST_TASK, WATCHED, NEXT, PREVIOUS = range(6)  # columns of Waiting.pairs
GAVE_WAY = 3  # a column of Waiting.tasks; the others are in heaps.py
READY, FREE, ARRIVALS, PAIRS = range(4)  # indices into Waiting.counts


class Waiting(NamedTuple):
    """The state of the rule: tasks that are or will be ready, and the queues of pairs of resources.

    A key is `urgency << 32 | number`; the smallest goes first. The number of a task that waits is its
    arrival: such tasks are numbered in the order in which they became ready.
    """

    # Two binary heaps of entries, by (TIME, KEY). An entry of `ready` is a task that becomes ready; its
    # RESOURCE is -1. An entry of `free` is a resource whose pairs have to be looked at: because it becomes
    # free (KEY is -1 - RESOURCE), or because the first task of its candidate may start (KEY is the task's).
    # A resource has at most one entry.
    ready: Array
    free: Array
    # By resource: when the last task that holds or reserves it ends; the first pair that watches it, or -1;
    # whether it has an entry; the pair that may start next.
    resources: Array
    # By pair: its resources (or -1); the first task of its queue, or -1; the resource that it watches; the
    # next and the previous pair that watch the same one, or -1. A pair without tasks watches nothing.
    pairs: Array
    pair_numbers: Array  # a hash table: 1 + the number of a pair, or 0
    # By waiting task: its key; the links of a pairing heap, which each queue is; how often it gave way.
    tasks: Array
    counts: Array  # entries of `ready`, of `free`; tasks that have waited; pairs


@njit(cache=True)
def nobody_waits(tasks: int, resources: int) -> Waiting:
    """Returns the state at the start, with room for this many tasks and resources."""
    by_resource = np.zeros((resources, 4), np.int64)
    by_resource[:, FIRST_PAIR] = NO_PAIR
    # The size of the hash table: a power of two, at least twice the largest possible number of pairs.
    size = 16
    while size < 2 * min(tasks, resources * (resources + 1)):
        size *= 2
    return Waiting(
        np.empty((tasks + 1, 3), np.int64), np.empty((resources + 1, 3), np.int64), by_resource,
        np.empty((tasks, 6), np.int64), np.zeros(size, np.int32), np.empty((tasks, 4), np.int64),
        np.zeros(4, np.int64),
    )  # fmt: skip


@allocates_nothing
def add_ready(waiting: Waiting, time: int, urgency: int, task: int) -> None:
    """Adds a task that becomes ready at `time`."""
    key = (int(urgency) << 32) | (NEW + int(task))
    push(waiting.ready, waiting.counts, READY, time, key, NO_RESOURCE)


@allocates_nothing
def take_next(
    waiting: Waiting, duration: Array, first: Array, second: Array, urgency: Array
) -> tuple[int, int, int]:
    """Returns the next task that starts (-1: no task is left), its start, and the last resource that it
    waited for (-1: none).

    The arrays are by task; first, second: its resources, or -1. The task holds its resources from its start
    for its duration.
    """
    ready, free, resources, counts = waiting.ready, waiting.free, waiting.resources, waiting.counts
    while counts[READY] or counts[FREE]:
        if not counts[FREE] or (
            counts[READY] and is_before(ready[0, TIME], ready[0, KEY], free[0, TIME], free[0, KEY])
        ):
            now, key = ready[0, TIME], ready[0, KEY]
            pop(ready, counts, READY)
            task = (key & LOWER_BITS) - NEW
            one, other = int(first[task]), int(second[task])
            if _is_free(waiting, one, now) and _is_free(waiting, other, now):
                _hold(waiting, one, other, now + duration[task])
                return task, now, NO_RESOURCE
            _wait(waiting, task, one, other, int(urgency[task]))
            continue
        now, key, r = free[0, TIME], free[0, KEY], free[0, RESOURCE]
        if resources[r, FREE_FROM] > now:  # another task has taken the resource
            _renew_entry(waiting, r)
        elif key >= 0 and _may_start(waiting, resources[r, CANDIDATE], key, now):
            return _start(waiting, resources[r, CANDIDATE], r, now, duration)
        else:
            pair = _next_candidate(waiting, r, now)
            if pair < 0:  # all its pairs now watch other resources
                _renew_entry(waiting, r)
                continue
            # The task starts in a later round, unless another task comes before it at this time.
            resources[r, CANDIDATE] = pair
            task_key = waiting.tasks[waiting.pairs[pair, FIRST_TASK], TASK_KEY]
            replace_first(free, counts, FREE, now, task_key, r)
    return NO_TASK, 0, NO_RESOURCE


@allocates_nothing
def _is_free(waiting: Waiting, r: int, now: int) -> bool:
    """Returns whether a resource is free; a missing one (-1) always is."""
    return bool(r < 0 or waiting.resources[r, FREE_FROM] <= now)


@allocates_nothing
def _start(waiting: Waiting, pair: int, r: int, now: int, duration: Array) -> tuple[int, int, int]:
    """Starts the first task of a pair that watches r; returns the same values as take_next.

    If the pair's other resource is busy, both are reserved until the task starts.
    """
    pairs, resources = waiting.pairs, waiting.resources
    task, one, other = pairs[pair, FIRST_TASK], pairs[pair, ONE], pairs[pair, OTHER]
    begin, blocker = now, r
    partner = other if one == r else one
    if partner >= 0 and resources[partner, FREE_FROM] > now:
        begin, blocker = resources[partner, FREE_FROM], partner
    pairs[pair, FIRST_TASK] = without_first(waiting.tasks, task)
    if pairs[pair, FIRST_TASK] < 0:
        _stop_watching(waiting, pair)
    resources[r, FREE_FROM] = begin + duration[task]
    _renew_entry(waiting, r)
    if partner >= 0:
        resources[partner, FREE_FROM] = begin + duration[task]
        _add_entry(waiting, partner)
    return task, begin, blocker


@allocates_nothing
def _hold(waiting: Waiting, one: int, other: int, until: int) -> None:
    """Marks resources as busy until a time."""
    if one >= 0:
        waiting.resources[one, FREE_FROM] = until
        _add_entry(waiting, one)
    if other >= 0:
        waiting.resources[other, FREE_FROM] = until
        _add_entry(waiting, other)


@allocates_nothing
def _add_entry(waiting: Waiting, r: int) -> None:
    """Adds an entry for the time when a busy resource becomes free, if pairs watch it."""
    resources = waiting.resources
    if resources[r, FIRST_PAIR] >= 0 and not resources[r, HAS_ENTRY]:
        resources[r, HAS_ENTRY] = 1
        push(waiting.free, waiting.counts, FREE, resources[r, FREE_FROM], -1 - r, r)


@allocates_nothing
def _renew_entry(waiting: Waiting, r: int) -> None:
    """Replaces the first entry, that of resource r, if pairs still watch it; else removes it."""
    resources = waiting.resources
    if resources[r, FIRST_PAIR] >= 0:
        replace_first(waiting.free, waiting.counts, FREE, resources[r, FREE_FROM], -1 - r, r)
    else:
        resources[r, HAS_ENTRY] = 0
        pop(waiting.free, waiting.counts, FREE)


@allocates_nothing
def _wait(waiting: Waiting, task: int, one: int, other: int, urgency: int) -> None:
    """Puts a task into the queue of its pair of resources."""
    tasks, counts, pairs = waiting.tasks, waiting.counts, waiting.pairs
    if one < 0:
        one, other = other, one
    tasks[task, TASK_KEY] = (urgency << 32) | counts[ARRIVALS]
    tasks[task, CHILD] = tasks[task, SIBLING] = NO_TASK
    tasks[task, GAVE_WAY] = 0
    counts[ARRIVALS] += 1
    pair = _pair_of(waiting, one, other)
    if pairs[pair, FIRST_TASK] < 0:
        free_from = waiting.resources[:, FREE_FROM]
        is_other_later = other >= 0 and free_from[other] > free_from[one]
        _watch(waiting, pair, other if is_other_later else one)
    pairs[pair, FIRST_TASK] = meld(tasks, pairs[pair, FIRST_TASK], task)


@allocates_nothing
def _watch(waiting: Waiting, pair: int, r: int) -> None:
    """Lets a pair watch a busy resource."""
    resources, pairs = waiting.resources, waiting.pairs
    following = resources[r, FIRST_PAIR]
    pairs[pair, WATCHED], pairs[pair, NEXT], pairs[pair, PREVIOUS] = r, following, NO_PAIR
    if following >= 0:
        pairs[following, PREVIOUS] = pair
    resources[r, FIRST_PAIR] = pair
    _add_entry(waiting, r)


@allocates_nothing
def _stop_watching(waiting: Waiting, pair: int) -> None:
    """Lets a pair watch nothing."""
    pairs = waiting.pairs
    following, previous = pairs[pair, NEXT], pairs[pair, PREVIOUS]
    if following >= 0:
        pairs[following, PREVIOUS] = previous
    if previous >= 0:
        pairs[previous, NEXT] = following
    else:
        waiting.resources[pairs[pair, WATCHED], FIRST_PAIR] = following


@allocates_nothing
def _pair_of(waiting: Waiting, one: int, other: int) -> int:
    """Returns the number of a pair of resources; numbers it if no task has waited for it before."""
    pairs, numbers = waiting.pairs, waiting.pair_numbers
    # A hash table with open addressing; the two factors spread the pairs over it.
    at = (one * 40503 + other * 30011) & (len(numbers) - 1)
    while numbers[at]:
        pair = numbers[at] - 1
        if pairs[pair, ONE] == one and pairs[pair, OTHER] == other:
            return int(pair)
        at = (at + 1) & (len(numbers) - 1)
    pair = waiting.counts[PAIRS]
    waiting.counts[PAIRS] += 1
    numbers[at] = pair + 1
    pairs[pair, ONE], pairs[pair, OTHER], pairs[pair, FIRST_TASK] = one, other, NO_TASK
    return int(pair)


@allocates_nothing
def _may_start(waiting: Waiting, pair: int, key: int, now: int) -> bool:
    """Returns whether the first task of a pair has this key, and its resources are free or reservable."""
    pairs, tasks = waiting.pairs, waiting.tasks
    task = pairs[pair, FIRST_TASK]
    return bool(
        tasks[task, TASK_KEY] == key
        and (
            (
                _is_free(waiting, pairs[pair, ONE], now)
                and _is_free(waiting, pairs[pair, OTHER], now)
            )
            or tasks[task, GAVE_WAY] >= MAX_GIVE_WAY
        )
    )


@allocates_nothing
def _next_candidate(waiting: Waiting, r: int, now: int) -> int:
    """Returns, of the pairs that watch a free resource, the one whose first task goes first, or -1.

    A pair whose other resource is busy watches the other one from now on, unless its first task has given
    way MAX_GIVE_WAY times.
    """
    resources, pairs, tasks = waiting.resources, waiting.pairs, waiting.tasks
    candidate, giving_way = int(NO_PAIR), int(NO_TASK)
    candidate_key = giving_key = 2**62
    pair = resources[r, FIRST_PAIR]
    while pair >= 0:
        following = pairs[pair, NEXT]
        task = pairs[pair, FIRST_TASK]
        key = tasks[task, TASK_KEY]
        other = pairs[pair, OTHER] if pairs[pair, ONE] == r else pairs[pair, ONE]
        if not _is_free(waiting, other, now) and tasks[task, GAVE_WAY] < MAX_GIVE_WAY:
            if key < giving_key:
                giving_way, giving_key = task, key
            _stop_watching(waiting, pair)
            _watch(waiting, pair, other)
        elif key < candidate_key:
            candidate, candidate_key = pair, key
        pair = following
    if giving_key < candidate_key:
        tasks[giving_way, GAVE_WAY] += 1
    return candidate
