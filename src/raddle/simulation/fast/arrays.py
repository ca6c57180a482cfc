"""The arrays that the fast path is made of: a tape, what a plan points to, and where a step is written."""

# node: a stretch, a task, a message, a part of an all-reduce, or a point where several meet
# d: device; v: value; i: operator; p: parameter; g: set of rings

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray

COMPUTE, MESSAGES, EVENT = range(3)  # kinds of rows of a tape
AFTER_ALL, AFTER_LAST_COMPUTE = (
    -1,
    -2,
)  # messages wait for all that their source has done; for what it computed last
# Columns of a node: the device is that of a stretch, else -1; what the device has computed before it;
# whether an arrival has been waited for; what taking it in takes; how urgent it is (0: it queues).
(
    DURATION,
    FIRST_RESOURCE,
    SECOND_RESOURCE,
    DEVICE,
    BUSY_BEFORE,
    AWAITED,
    RECEIVE_OVERHEAD,
    URGENCY,
) = range(8)
# Columns of what is synchronised, a parameter or a slice: rows of its messages to a server, of its update
# and of the messages back, as first and count; the set of rings that sums it (-1: none) and its first row
# in the amounts; whether it travels; whether its server has a gradient of its own.
(
    PUSH_FIRST,
    PUSH_COUNT,
    UPDATE_FIRST,
    UPDATE_COUNT,
    PULL_FIRST,
    PULL_COUNT,
    RING_SET,
    AMOUNT_FIRST,
    NEEDS_SYNC,
    UPDATER_IS_HOLDER,
) = range(10)
SYNC_COLUMNS = 10  # columns


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
    send_after: Array  # of messages: the mark that they wait for, or NOW, or LATEST
    arrival: Array  # of messages: where arrivals are noted
    urgency: Array  # of messages
    has_gradient: Array  # by parameter, whether it has a gradient
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
    partial_gradient: Array
    activation: Array  # message rows by value
    gradient: Array
    pulls: Array  # message rows by pull of a divided parameter
    sync_units: Array  # by parameter, what is synchronised of it: itself, or its slices


class Arena(NamedTuple):
    """Rows that slots point to."""

    computes: Array  # [row, (device, nanoseconds)]
    # [row, (source, target, nanoseconds, first link, second link, nanoseconds of source, of target)]
    messages: Array
    # [row, (bytes that are summed, bytes in memory)] of a parameter, by ring of its set
    amounts: Array
    sync_units: Array  # [row, columns above]


class Rings(NamedTuple):
    """Rings that sum gradients, in sets; sets are numbered as they were met."""

    set_at: Array
    ring: Array  # of a set, in order
    member_at: Array
    member: Array
    first_link: Array  # links of a member
    second_link: Array
    topology: Array  # [ring, (size, bandwidth, latency, heads, their bandwidth, latency)]
    node_ring_at: Array
    node_rings: Array  # [.., (size, bandwidth, latency)] of the rings inside of nodes


class HostOverhead(NamedTuple):
    """What communication takes from the devices themselves, in seconds by device (costs/host_overhead.py)."""

    enabled: bool  # whether it takes anything from any
    message: Array
    slice: Array
    byte: Array
    sum: Array


class SyncSettings(NamedTuple):
    """How a plan synchronises (program/step_script.py)."""

    rule: int
    bucket_bytes: int  # bytes
    returns_updates: bool
    sliced: bool  # slices: updated beside what devices compute, and sent by threads of their own
    urgency: Array  # by parameter, of its messages


class StepDag(NamedTuple):
    """Where nodes and edges are written; made once."""

    nodes: Array  # [node, columns above]
    edges: Array  # [edge, (source, target, nanoseconds after the source's start or end)]
    arrival: Array  # [table of arrivals, device]: the node that arrives
    mark_stretch: (
        Array  # [mark, device]: the stretch of the last contribution; parameters come first
    )
    mark_offset: Array  # and how far into it
    sync_arrival: Array  # [row of the script, device]: where sums and pushes arrive


class DeviceProgress(NamedTuple):
    """By device: its current stretch, how far it has come in it and before it, what it is to take in; and
    loads of resources. Where nothing is folded a stretch is one task, which holds its device."""

    stretch: Array
    offset: Array
    busy_before: Array
    receive_overhead: Array
    load: Array
    arrivals: Array
    last_compute: Array  # by device, the task that it computed last; only where nothing is folded
    has_host_overhead: bool
    fold: bool
