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

Waiting tasks that need the same resources (a *pair*; the second may be missing) are in one queue
(waiting_queues.py). A pair *watches* one of its resources that is busy, at first the one that becomes free
later. When a resource becomes free, only the pairs that watch it have to be looked at. A pair whose other
resource is busy then watches the other one. Of the other pairs, the one whose first task goes first is the
resource's *candidate*: the task starts, unless another one comes before it at this time.

`one` and `other` are the two resources of a task or a pair. A missing one is -1 or the last row of
Waiting.resources; index -1 means that row as well.
"""

# r: resource

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.simulation.heaps import (
    ITEM,
    NO_TASK,
    RANK,
    allocates_nothing,
    pop,
    push,
    replace_first,
)
from raddle.simulation.waiting_queues import (
    CANDIDATE,
    DUE,
    FIRST_PAIR,
    FREE_FROM,
    GAVE_WAY,
    HAS_ENTRY,
    LAST_KEY,
    LAST_READY,
    LAST_TIME,
    LATER,
    LOWER_BITS,
    NEXT,
    NO_KEY,
    NO_PAIR,
    PAIR_COLUMNS,
    PAIR_KEY,
    PARTNER,
    TASK_COLUMNS,
    TIME,
    UNUSED_ROW,
    Array,
    Waiting,
    append,
    pair_of,
    take_first,
)

MAX_GIVE_WAY = 16  # after these, a task reserves both of its resources
NEW = 2**31  # the lower 32 bits of the key of a task that has not waited: NEW + its number
NO_RESOURCE = -1


@njit(cache=True, forceinline=True)
def nobody_waits(tasks: int, resources: int) -> Waiting:
    """Returns the state at the start, with room for this many tasks and resources."""
    by_resource = np.zeros((resources + 1, 4), np.int64)
    by_resource[:, FIRST_PAIR] = NO_PAIR
    # The size of the hash table: a power of two, at least twice the largest possible number of pairs.
    size = 16
    while size < 2 * min(tasks, resources * (resources + 1)):
        size *= 2
    counts = np.zeros(10, np.int64)
    counts[LAST_READY] = counts[UNUSED_ROW] = NO_TASK
    return Waiting(
        np.empty((tasks + resources + 1, 2), np.int64), np.empty((tasks + resources + 1, 2), np.int64),
        np.empty(tasks, np.int32), by_resource,
        np.empty((tasks, PAIR_COLUMNS), np.int64), np.zeros(size, np.int32),
        np.empty((tasks, TASK_COLUMNS), np.int64), counts,
    )  # fmt: skip


@allocates_nothing
def add_ready(waiting: Waiting, time: int, urgency: int, task: int) -> None:
    """Adds a task that becomes ready at `time`."""
    counts, key = waiting.counts, (int(urgency) << 32) | (NEW + int(task))
    # A task often lets many others become ready at one time: they are a series.
    if counts[LAST_READY] >= 0 and counts[LAST_TIME] == time and counts[LAST_KEY] < key:
        waiting.next_ready[counts[LAST_READY]] = task
    else:
        push(waiting.later, counts, LATER, time, -1 - int(task))
    waiting.next_ready[task] = NO_TASK
    counts[LAST_READY], counts[LAST_TIME], counts[LAST_KEY] = task, time, key


@allocates_nothing
def take_next(
    waiting: Waiting, duration: Array, first: Array, second: Array, urgency: Array
) -> tuple[int, int, int]:
    """Returns the next task that starts (-1: no task is left), its start, and the last resource that it
    waited for (-1: none).

    The arrays are by task; first, second: its resources, or -1. The task holds its resources from its start
    for its duration.
    """
    resources, counts, due = waiting.resources, waiting.counts, waiting.due
    while True:
        if counts[LATER] and (waiting.later[0, RANK] <= counts[TIME] or not counts[DUE]):
            _take_later(waiting, urgency)
            continue
        if not counts[DUE]:
            return NO_TASK, 0, NO_RESOURCE
        time, key, r = counts[TIME], due[0, RANK], due[0, ITEM]
        if r < 0:
            task = (key & LOWER_BITS) - NEW
            _remove_ready(waiting, urgency, task)
            one, other = int(first[task]), int(second[task])
            if resources[one, FREE_FROM] <= time and resources[other, FREE_FROM] <= time:
                _hold(waiting, one, other, time + duration[task])
                return task, time, NO_RESOURCE
            _wait(waiting, task, one, other, int(urgency[task]))
            continue
        if resources[r, FREE_FROM] > time:  # another task has taken the resource
            pop(due, counts, DUE)
            _add_entry(waiting, r)
            continue
        pair = resources[r, CANDIDATE]
        if _may_start(waiting, pair, key, time):
            pop(due, counts, DUE)
            return _start(waiting, pair, r, time, duration)
        pair = _next_candidate(waiting, r, time)
        if pair < 0:  # all its pairs now watch other resources
            pop(due, counts, DUE)
        else:
            replace_first(due, counts, DUE, waiting.pairs[pair, PAIR_KEY], r)


@allocates_nothing
def _take_later(waiting: Waiting, urgency: Array) -> None:
    """Removes the first entry of `later`, and adds what may start at its time to `due`."""
    counts, time, item = waiting.counts, waiting.later[0, RANK], waiting.later[0, ITEM]
    pop(waiting.later, counts, LATER)
    counts[TIME] = time
    if item < 0:
        task = -1 - item
        push(waiting.due, counts, DUE, (int(urgency[task]) << 32) | (NEW + task), NO_RESOURCE)
        return
    for r in (item >> 32, item & LOWER_BITS):
        waiting.resources[r, HAS_ENTRY] = 0
        if waiting.resources[r, FREE_FROM] > time:  # a task has reserved the resource
            _add_entry(waiting, r)
        elif waiting.resources[r, FIRST_PAIR] >= 0:
            pair = _next_candidate(waiting, r, time)
            if pair >= 0:
                push(waiting.due, counts, DUE, waiting.pairs[pair, PAIR_KEY], r)


@allocates_nothing
def _remove_ready(waiting: Waiting, urgency: Array, task: int) -> None:
    """Removes the first entry of `due`, a ready task; the next one of its series takes its place."""
    following = int(waiting.next_ready[task])
    if following >= 0:
        key = (int(urgency[following]) << 32) | (NEW + following)
        replace_first(waiting.due, waiting.counts, DUE, key, NO_RESOURCE)
    else:
        pop(waiting.due, waiting.counts, DUE)
        if waiting.counts[LAST_READY] == task:
            waiting.counts[LAST_READY] = NO_TASK


@allocates_nothing
def _start(waiting: Waiting, pair: int, r: int, now: int, duration: Array) -> tuple[int, int, int]:
    """Starts the first task of a pair that watches r; returns the same values as take_next.

    If the pair's other resource is busy, both are reserved until the task starts.
    """
    pairs, resources = waiting.pairs, waiting.resources
    begin, blocker, partner = now, r, pairs[pair, PARTNER]
    if resources[partner, FREE_FROM] > now:
        begin, blocker = resources[partner, FREE_FROM], partner
    task = take_first(waiting, pair)
    if pairs[pair, PAIR_KEY] == NO_KEY:
        _stop_watching(waiting, pair, r)
    _hold(waiting, r, partner, begin + duration[task])
    return task, begin, blocker


@allocates_nothing
def _hold(waiting: Waiting, one: int, other: int, until: int) -> None:
    """Marks resources as busy until a time, and adds an entry for this time if pairs watch them."""
    resources, missing = waiting.resources, len(waiting.resources) - 1
    one, other = one if one >= 0 else missing, other if other >= 0 else missing
    resources[one, FREE_FROM] = resources[other, FREE_FROM] = until
    resources[missing, FREE_FROM] = 0  # it is always free
    has_one = resources[one, FIRST_PAIR] >= 0 and not resources[one, HAS_ENTRY]
    has_other = resources[other, FIRST_PAIR] >= 0 and not resources[other, HAS_ENTRY]
    if has_one or has_other:
        one, other = one if has_one else missing, other if has_other else missing
        resources[one, HAS_ENTRY] = resources[other, HAS_ENTRY] = 1
        push(waiting.later, waiting.counts, LATER, until, (one << 32) | other)


@allocates_nothing
def _add_entry(waiting: Waiting, r: int) -> None:
    """Adds an entry for the time when a busy resource becomes free, if pairs watch it."""
    resources = waiting.resources
    if resources[r, FIRST_PAIR] >= 0 and not resources[r, HAS_ENTRY]:
        resources[r, HAS_ENTRY] = 1
        both = (int(r) << 32) | (len(resources) - 1)
        push(waiting.later, waiting.counts, LATER, resources[r, FREE_FROM], both)


@allocates_nothing
def _wait(waiting: Waiting, task: int, one: int, other: int, urgency: int) -> None:
    """Puts a task into the queue of its pair of resources."""
    resources = waiting.resources
    missing = len(resources) - 1
    one, other = one if one >= 0 else missing, other if other >= 0 else missing
    pair = pair_of(waiting, one, other)
    if waiting.pairs[pair, PAIR_KEY] == NO_KEY:
        if resources[other, FREE_FROM] > resources[one, FREE_FROM]:
            _watch(waiting, pair, other, one)
        else:
            _watch(waiting, pair, one, other)
    append(waiting, pair, task, urgency)


@allocates_nothing
def _watch(waiting: Waiting, pair: int, r: int, partner: int) -> None:
    """Lets a pair watch a busy resource, r; partner: its other resource."""
    resources, pairs = waiting.resources, waiting.pairs
    pairs[pair, NEXT], pairs[pair, PARTNER] = resources[r, FIRST_PAIR], partner
    resources[r, FIRST_PAIR] = pair
    _add_entry(waiting, r)


@allocates_nothing
def _stop_watching(waiting: Waiting, pair: int, r: int) -> None:
    """Lets a pair that watches r watch nothing."""
    resources, pairs = waiting.resources, waiting.pairs
    previous, at = int(NO_PAIR), resources[r, FIRST_PAIR]
    while at != pair:
        previous, at = at, pairs[at, NEXT]
    if previous >= 0:
        pairs[previous, NEXT] = pairs[pair, NEXT]
    else:
        resources[r, FIRST_PAIR] = pairs[pair, NEXT]


@allocates_nothing
def _may_start(waiting: Waiting, pair: int, key: int, now: int) -> bool:
    """Returns whether the first task of a pair that watches a free resource has this key, and the other
    resource is free or may be reserved."""
    pairs = waiting.pairs
    is_free = waiting.resources[pairs[pair, PARTNER], FREE_FROM] <= now
    return bool(pairs[pair, PAIR_KEY] == key and (is_free or pairs[pair, GAVE_WAY] >= MAX_GIVE_WAY))


@allocates_nothing
def _next_candidate(waiting: Waiting, r: int, now: int) -> int:
    """Returns, of the pairs that watch a free resource, the one whose first task goes first, or -1.

    A pair whose other resource is busy watches the other one from now on, unless its first task has given
    way MAX_GIVE_WAY times.
    """
    resources, pairs = waiting.resources, waiting.pairs
    candidate, giving_way = int(NO_PAIR), int(NO_PAIR)
    candidate_key = giving_key = int(NO_KEY)
    pair, previous = resources[r, FIRST_PAIR], int(NO_PAIR)
    while pair >= 0:
        following, key = pairs[pair, NEXT], pairs[pair, PAIR_KEY]
        partner = pairs[pair, PARTNER]
        if resources[partner, FREE_FROM] > now and pairs[pair, GAVE_WAY] < MAX_GIVE_WAY:
            if key < giving_key:
                giving_way, giving_key = pair, key
            if previous >= 0:
                pairs[previous, NEXT] = following
            else:
                resources[r, FIRST_PAIR] = following
            _watch(waiting, pair, partner, r)
        else:
            if key < candidate_key:
                candidate, candidate_key = pair, key
            previous = pair
        pair = following
    resources[r, CANDIDATE] = candidate
    if giving_key < candidate_key:
        pairs[giving_way, GAVE_WAY] += 1
    return candidate
