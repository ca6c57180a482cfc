"""The arrays that the fast path is made of: a tape, what a plan points to, and where a step is written."""

# node: a stretch, a task, a message, a part of an all-reduce, or a point where several meet
# d: device; v: value; i: operator; p: parameter; g: set of rings

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray

COMPUTE, MESSAGES, EVENT = range(3)  # kinds of rows of a tape
NOW, LATEST = -1, -2  # messages wait for all that their source has done; for what it computed last
# Columns of a node: the device is that of a stretch, else -1; what the device has computed before it;
# whether an arrival has been waited for; what taking it in takes; how urgent it is (0: it queues).
DURATION, FIRST, SECOND, DEVICE, DONE, SEEN, TAKING, URGENCY = range(8)
# Columns of what is synchronised, a parameter or a slice: rows of its messages to a server, of its update
# and of the messages back, as first and count; the set of rings that sums it (-1: none) and its first row
# in the amounts; whether it travels; whether its server has a gradient of its own.
PUSH_AT, PUSHES, UPDATE_AT, UPDATES, PULL_AT, PULLS, RINGS, AMOUNT_AT, TRAVELS, OWN = range(10)
SYNCED = 10  # columns


class Tape(NamedTuple):
    """The order of a graph's instructions, the same for all plans; x_at[r]:x_at[r + 1] is r's part of x.

    What a row waits for is told by slots: it waits for nothing of those that are empty.
    """

    kind: Array
    slot: Array  # of computing or of messages; of events, their number
    wait_at: Array  # messages that a row waits for: their slots and tables of arrivals
    wait_slot: Array
    wait_arrival: Array
    mark_at: Array  # what later messages and sums wait for: marks, with the slots of those messages
    mark: Array
    mark_slot: Array  # (-1: always needed)
    since: Array  # of messages: the mark that they wait for, or NOW, or LATEST
    arrival: Array  # of messages: where arrivals are noted
    urgency: Array  # of messages
    graded: Array  # by parameter, whether it has a gradient
    events: Array
    event_parameter: Array
    event_run: Array


class Slots(NamedTuple):
    """The state of a plan: rows of the arena, as (first, count). All but `synced` are views of `table`."""

    table: Array
    forward: Array  # compute rows by operator
    backward: Array
    merge: Array
    partial: Array  # message rows by operator
    partial_back: Array
    activation: Array  # message rows by value
    gradient: Array
    pulled: Array  # message rows by pull of a divided parameter
    synced: Array  # by parameter, what is synchronised of it: itself, or its slices


class Arena(NamedTuple):
    """Rows that slots point to."""

    computes: Array  # [row, (device, nanoseconds)]
    # [row, (source, target, nanoseconds, first link, second link, nanoseconds of source, of target)]
    messages: Array
    # [row, (bytes that are summed, bytes in memory)] of a parameter, by ring of its set
    amounts: Array
    synced: Array  # [row, columns above]


class Rings(NamedTuple):
    """Rings that sum gradients, in sets; sets are numbered as they were met."""

    set_at: Array
    ring: Array  # of a set, in order
    member_at: Array
    member: Array
    first: Array  # links of a member
    second: Array
    figures: Array  # [ring, (size, bandwidth, latency, heads, their bandwidth, latency)]
    inner_at: Array
    inner: Array  # [.., (size, bandwidth, latency)] of the rings inside of nodes


class Handling(NamedTuple):
    """What communication takes from the devices themselves, in seconds by device (costs/host_overhead.py)."""

    handles: bool  # whether it takes anything from any
    message: Array
    slice: Array
    byte: Array
    sum: Array


class Ways(NamedTuple):
    """How a plan synchronises (program/step_script.py)."""

    way: int
    bucket: int  # bytes
    returned: bool
    apart: bool  # slices: updated beside what devices compute, and sent by threads of their own
    urgency: Array  # by parameter, of its messages


class Space(NamedTuple):
    """Where nodes and edges are written; made once."""

    nodes: Array  # [node, columns above]
    edges: Array  # [edge, (source, target, nanoseconds after the source's start or end)]
    arrival: Array  # [table of arrivals, device]: the node that arrives
    marked: Array  # [mark, device]: the stretch of the last contribution; parameters come first
    marked_after: Array  # and how far into it
    summed: Array  # [row of the script, device]: where sums and pushes arrive


class Lane(NamedTuple):
    """By device: its current stretch, how far it has come in it and before it, what it is to take in; and
    loads of resources. Where nothing is folded a stretch is one task, which holds its device."""

    stretch: Array
    offset: Array
    done: Array
    taking: Array
    load: Array
    several: Array
    ran: Array  # by device, the task that it computed last; only where nothing is folded
    handles: bool
    fold: bool
