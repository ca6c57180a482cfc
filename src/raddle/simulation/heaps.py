"""Implements two kinds of heaps for the event loops (waiting.py), JIT-compiled: the smallest comes first.

A binary heap has entries of two numbers, a rank and an item, and is sorted by rank. A pairing heap of
waiting tasks is sorted by key; it is a tree of references between rows of one table, which many heaps
share, and it adds a task in constant time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

Array = np.ndarray
Function = TypeVar("Function", bound=Callable[..., Any])

NO_TASK = -1
RANK, ITEM = range(2)  # columns of the entries of a binary heap
TASK_KEY, CHILD, SIBLING = range(3)  # columns of the rows of pairing heaps


def allocates_nothing(function: Function) -> Function:
    """Compiles a function that allocates nothing, into the code of its caller.

    Both matter more than all other work of an event loop. With numba's counting of references to arrays a
    task takes 190 ns, without it 40 ns. And a call copies the descriptions of all arrays that it passes.
    """
    jit = njit(cache=True, _nrt=False, forceinline=True)  # type: ignore[call-overload]
    return jit(function)  # type: ignore[no-any-return]


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
def push(entries: Array, counts: Array, heap: int, rank: int, item: int) -> None:
    """Adds an entry to a binary heap; counts[heap] is the number of its entries."""
    at = counts[heap]
    counts[heap] = at + 1
    while at > 0:
        parent = (at - 1) >> 1
        if entries[parent, RANK] <= rank:
            break
        entries[at, RANK], entries[at, ITEM] = entries[parent, RANK], entries[parent, ITEM]
        at = parent
    entries[at, RANK], entries[at, ITEM] = rank, item


@allocates_nothing
def pop(entries: Array, counts: Array, heap: int) -> None:
    """Removes the smallest entry of a binary heap; counts[heap] is the number of its entries."""
    last = counts[heap] - 1
    counts[heap] = last
    _sink(entries, last, entries[last, RANK], entries[last, ITEM])


@allocates_nothing
def replace_first(entries: Array, counts: Array, heap: int, rank: int, item: int) -> None:
    """Puts another entry in the place of the smallest one: faster than `pop` and `push`."""
    _sink(entries, counts[heap], rank, item)


@allocates_nothing
def _sink(entries: Array, size: int, rank: int, item: int) -> None:
    """Writes an entry into a heap of this size whose first place is free, and moves it down."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size:  # adding a truth value is faster than a branch that is hard to predict
            child += entries[right, RANK] < entries[child, RANK]
        if entries[child, RANK] >= rank:
            break
        entries[at, RANK], entries[at, ITEM] = entries[child, RANK], entries[child, ITEM]
        at = child
    entries[at, RANK], entries[at, ITEM] = rank, item
