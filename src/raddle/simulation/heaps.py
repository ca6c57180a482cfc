"""Implements two kinds of heaps for the event loops (waiting.py), JIT-compiled: the smallest comes first.

A binary heap of entries (time, key, resource) is sorted by time, then by key. A pairing heap of waiting
tasks is sorted by key; it is a tree of references between tasks, so that many heaps share one table, and it
adds a task in constant time.
"""

# r: resource (a device or a link, by number)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

Array = np.ndarray
Function = TypeVar("Function", bound=Callable[..., Any])

NO_TASK = -1
TIME, KEY, RESOURCE = range(3)  # columns of the entries of a binary heap
TASK_KEY, CHILD, SIBLING = range(3)  # columns of the tasks of pairing heaps


def allocates_nothing(function: Function) -> Function:
    """Compiles a function that allocates nothing, without numba's counting of references to its arrays.

    Counting takes longer than all other work of an event loop: 190 ns a task with it, 40 ns without.
    """
    return njit(cache=True, _nrt=False)(function)  # type: ignore[call-overload,no-any-return]


@allocates_nothing
def meld(tasks: Array, a: int, b: int) -> int:
    """Joins two pairing heaps, given by their first tasks (-1: empty); returns the first task of both."""
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
def without_first(tasks: Array, task: int) -> int:
    """Removes the first task of a pairing heap, `task`; returns the new first task, or -1."""
    # Meld the children in pairs, then all pairs, from the last to the first.
    melded, child = int(NO_TASK), tasks[task, CHILD]
    while child >= 0:
        neighbour, following = tasks[child, SIBLING], int(NO_TASK)
        tasks[child, SIBLING] = NO_TASK
        if neighbour >= 0:
            following = tasks[neighbour, SIBLING]
            tasks[neighbour, SIBLING] = NO_TASK
        pair = meld(tasks, child, neighbour)
        tasks[pair, SIBLING] = melded
        melded, child = pair, following
    root = int(NO_TASK)
    while melded >= 0:
        following = tasks[melded, SIBLING]
        tasks[melded, SIBLING] = NO_TASK
        root = meld(tasks, root, melded)
        melded = following
    return root


@allocates_nothing
def push(entries: Array, counts: Array, heap: int, time: int, key: int, r: int) -> None:
    """Adds an entry to a binary heap; counts[heap] is the number of its entries."""
    at = counts[heap]
    counts[heap] = at + 1
    while at > 0:
        parent = (at - 1) >> 1
        if not is_before(time, key, entries[parent, TIME], entries[parent, KEY]):
            break
        _copy(entries, parent, at)
        at = parent
    entries[at, TIME], entries[at, KEY], entries[at, RESOURCE] = time, key, r


@allocates_nothing
def pop(entries: Array, counts: Array, heap: int) -> None:
    """Removes the smallest entry of a binary heap; counts[heap] is the number of its entries."""
    last = counts[heap] - 1
    counts[heap] = last
    _sink(entries, last, entries[last, TIME], entries[last, KEY], entries[last, RESOURCE])


@allocates_nothing
def replace_first(entries: Array, counts: Array, heap: int, time: int, key: int, r: int) -> None:
    """Puts another entry in the place of the smallest one: faster than `pop` and `push`."""
    _sink(entries, counts[heap], time, key, r)


@allocates_nothing
def _sink(entries: Array, size: int, time: int, key: int, r: int) -> None:
    """Writes an entry into a heap of this size whose first place is free, and moves it down."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and is_before(
            entries[right, TIME], entries[right, KEY], entries[child, TIME], entries[child, KEY]
        ):
            child = right
        if not is_before(entries[child, TIME], entries[child, KEY], time, key):
            break
        _copy(entries, child, at)
        at = child
    entries[at, TIME], entries[at, KEY], entries[at, RESOURCE] = time, key, r


@allocates_nothing
def is_before(time: int, key: int, other_time: int, other_key: int) -> bool:
    """Returns whether an entry with this time and key comes before another."""
    return bool(time < other_time or (time == other_time and key < other_key))


@allocates_nothing
def _copy(entries: Array, source: int, target: int) -> None:
    """Copies an entry number by number, which is faster than a copy of the row."""
    entries[target, TIME] = entries[source, TIME]
    entries[target, KEY] = entries[source, KEY]
    entries[target, RESOURCE] = entries[source, RESOURCE]
