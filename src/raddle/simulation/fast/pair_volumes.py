"""Counts the elements of a value that each device sends to each other device, JIT-compiled.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

program/value_holders.py computes the same for a program, with boxes in place of volumes. A piece is a box
of the value that some devices hold; a need is a box that a device reads.
"""

# s: source, t: target (devices), r: number of dimensions (`rank`), d: dimension, p: piece, m: missing box

from __future__ import annotations

import numpy as np
from numba import njit
from numba.extending import register_jitable

from raddle.costs.links import occupied_seconds
from raddle.program.value_holders import chosen_copy, target_at_turn

Array = np.ndarray
for _rule in (chosen_copy, target_at_turn):  # numba needs them to be jitable
    register_jitable(_rule)  # the rules by which a program chooses sources and orders messages
MAX_BOXES = 1024  # of one value that a device may hold; with more, pair_volumes fails


@njit(cache=True)
def pair_volumes(
    count: int,  # devices
    pieces: Array,  # [piece, r, 2]: disjoint boxes of the value, as (from, to) by dimension
    holders: Array,  # the devices holders[holder_at[p]:holder_at[p + 1]] hold piece p
    holder_at: Array,
    needs: Array,  # [need, r, 2]: boxes that devices need, in the order in which they are fetched
    target: Array,  # by need: the device that needs it
    sends_gradient: Array,  # by need: whether its gradient is sent back; those needs come first
    forward: Array,  # out, [s, t]: elements sent from s to t are added
    backward: Array,  # out, [s, t]: elements whose gradients are sent back from s to t are added
) -> bool:
    """Adds up the volumes; returns False if a device holds more than MAX_BOXES boxes.

    A device holds its pieces at first. For each of its needs in turn, it receives the boxes that are still
    missing, and holds them from then on.
    """
    rank = pieces.shape[1]
    held_boxes = np.empty((MAX_BOXES, rank, 2), np.int64)  # held by the device so far
    missing_boxes = np.empty((MAX_BOXES, rank, 2), np.int64)  # of a need: not held by the device
    remaining_boxes = np.empty((MAX_BOXES, rank, 2), np.int64)  # swapped with missing_boxes
    order = np.argsort(target, kind="mergesort")  # the needs, sorted by device; stable
    i = 0  # place in `order`
    while i < len(order):
        device = target[order[i]]
        held_count = 0
        for p in range(len(pieces)):
            for h in range(holder_at[p], holder_at[p + 1]):
                if holders[h] == device:
                    if held_count == MAX_BOXES:
                        return False
                    held_boxes[held_count] = pieces[p]
                    held_count += 1
                    break
        while i < len(order) and target[order[i]] == device:
            need = order[i]
            i += 1
            missing_boxes[0] = needs[need]
            missing_count = 1
            for k in range(held_count):  # subtract the boxes that the device holds
                remaining_count = 0
                for m in range(missing_count):
                    remaining_count = _subtract(
                        missing_boxes[m], held_boxes[k], remaining_boxes, remaining_count
                    )
                    if remaining_count < 0:
                        return False
                missing_count = remaining_count
                missing_boxes, remaining_boxes = remaining_boxes, missing_boxes
                if missing_count == 0:
                    break
            for m in range(missing_count):
                for p in range(len(pieces)):
                    volume = 1
                    for d in range(rank):
                        lo = max(missing_boxes[m, d, 0], pieces[p, d, 0])
                        hi = min(missing_boxes[m, d, 1], pieces[p, d, 1])
                        volume = volume * (hi - lo) if hi > lo else 0
                    if volume > 0:
                        # Of several devices that hold the piece, one is chosen.
                        source = holders[
                            holder_at[p] + chosen_copy(device, holder_at[p + 1] - holder_at[p])
                        ]
                        forward[source, device] += volume
                        if sends_gradient[need]:
                            backward[device, source] += volume
                if held_count == MAX_BOXES:
                    return False
                held_boxes[held_count] = missing_boxes[m]
                held_count += 1
    return True


@njit(cache=True)
def _subtract(box: Array, cut: Array, into: Array, at: int) -> int:
    """Writes the parts of `box` outside of the box `cut` to into[at:].

    Returns the new number of boxes in `into`; -1 if there is no room for them.
    """
    rank = len(box)
    for d in range(rank):
        if cut[d, 1] <= box[d, 0] or cut[d, 0] >= box[d, 1]:  # they do not overlap
            if at == MAX_BOXES:
                return -1
            into[at] = box
            return at + 1
    current = box.copy()  # not written yet; in the dimensions before d it lies inside `cut`
    for d in range(rank):
        for side in range(2):
            lo = current[d, 0] if side == 0 else cut[d, 1]
            hi = cut[d, 0] if side == 0 else current[d, 1]
            if lo < hi:
                if at == MAX_BOXES:
                    return -1
                into[at] = current
                into[at, d, 0], into[at, d, 1] = lo, hi
                at += 1
        current[d, 0] = max(current[d, 0], cut[d, 0])
        current[d, 1] = min(current[d, 1], cut[d, 1])
    return at


@njit(cache=True)
def write_transfers(volumes: Array, element_bytes: int, bandwidth: Array, rows: Array) -> int:
    """Writes rows (source, target, nanoseconds, bytes), ordered as in a program; returns their number.

    The nanoseconds are those on the links. volumes: [s, t], elements from s to t. bandwidth: [s, t], of the
    route. rows: out. In turn k, every device sends to the k-th device after it.
    """
    count = len(volumes)
    n = 0
    for turn in range(1, count):
        for s in range(count):
            t = target_at_turn(s, turn, count)
            if volumes[s, t] > 0:
                seconds = occupied_seconds(bandwidth[s, t], volumes[s, t] * element_bytes)
                rows[n, 0], rows[n, 1] = s, t
                rows[n, 2], rows[n, 3] = (
                    max(1, int(np.rint(seconds * 1e9))),
                    volumes[s, t] * element_bytes,
                )
                n += 1
    return n
