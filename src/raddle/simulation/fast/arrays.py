"""Declares the arrays of the fast simulation of one training step, with all their columns.

The fast simulation (evaluator.py) times thousands of plans per second; numba compiles it, so its data are
tuples of arrays in place of objects:

    Tape      the instructions of a graph in their order, recorded once, the same for all plans (tape.py)
    Slots     of the current plan: which rows of the Arena belong to each instruction (plan_rows.py)
    Arena     tables of rows: computations, messages and synchronisations of all plans so far (store.py)
    StepDag   the nodes and edges of one step, which kernel.py writes and simulates

A slot is a pair (first row, number of rows) of a table. Example: the forward slot of operator i points to
rows (device, nanoseconds), one for each device with a tile of i. An instruction with an empty slot does
not exist in the plan.

A stretch is a series of tasks that a device computes without waiting (nodes.py). A node is a stretch, a
task, a message, a member of an all-reduce, or a join, which ends when several others have ended. The
arrival on a device is the node that ends when the device has received all messages of an instruction, or
the result of an all-reduce: one message, one member, one task that receives, or a join.

A slice is a range of rows of a parameter that is synchronised on its own; a bundle is slices of several
parameters that are synchronised together. A ring is the devices that take part in one collective.
"""

# i: operator; p: parameter; r: row of the tape; k: ring; g: set of rings

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray

# Kinds of rows of a tape. A GATHER gathers the parameters of a block (ZeRO-3). At an EVENT, such as "a
# gradient is complete", the step script may add collectives, messages to servers and updates
# (program/step_script.py).
COMPUTE, MESSAGES, GATHER, EVENT = range(4)
AFTER_ALL = -1  # Tape.send_after: messages wait for all that their source has done so far
# Columns of StepDag.nodes.
(
    DURATION,  # nanoseconds for which it holds its resources; 0 for a stretch: its edges have delays
    FIRST_RESOURCE,  # a device or link that it holds, or -1
    SECOND_RESOURCE,  # another link, or -1
    DEVICE,  # of a stretch: its device; else -1
    BUSY_BEFORE,  # of a stretch: nanoseconds that its device has computed before
    AWAITED,  # 1: of an arrival: its device has waited for it; of a stretch: a collective waits for it
    RECEIVE_OVERHEAD,  # of an arrival: nanoseconds that its device needs to receive it
    URGENCY,  # 0: resources serve it in order; else the smallest number goes first
    LATENCY,  # of a message: nanoseconds in flight, after it has released its resources; else 0
) = range(9)
# Columns of Arena.sync_units. A sync unit is synchronised at once: it is a parameter, or a bundle of
# slices. Pairs _FIRST and _COUNT are slots.
(
    PUSH_FIRST,  # message rows: gradients to the server
    PUSH_COUNT,
    UPDATE_FIRST,  # compute rows: the optimizer's update
    UPDATE_COUNT,
    PULL_FIRST,  # message rows: updated values from the server
    PULL_COUNT,
    RING_SET,  # number of the set of rings that sums it (Rings below), or -1
    GATHER_SET,  # with shards: the set of rings that gathers it, or -1
    REPLICA_SET,  # if shards have replicas (HSDP): the set of rings that all-reduces them, or -1
    # Its first row of Arena.amounts, which has its bytes for each ring of RING_SET or of GATHER_SET, then
    # for each of REPLICA_SET.
    AMOUNT_FIRST,
    NEEDS_SYNC,  # 1 if it has to be sent at all: more than one device is involved
    UPDATER_IS_HOLDER,  # 1 if a device that updates it also has a gradient of its own
    BUNDLED_FIRST,  # rows of Arena.members: by slice of a bundle, the number of its parameter
    BUNDLED_COUNT,
) = range(14)
SYNC_COLUMNS = 14


class Tape(NamedTuple):
    """The instructions of a graph in their order, as rows r; the same for all plans.

    Lists of different lengths are joined: the entries x of row r are x[x_at[r]:x_at[r + 1]]. A mark is a
    number under which a row records when it has ended on each device, for later messages and all-reduces.
    """

    kind: Array  # by row: COMPUTE, MESSAGES, GATHER or EVENT
    slot: Array  # by row: index into Slots.table; of an event: its number
    wait_at: Array  # the messages and gathers that a row waits for:
    wait_slot: Array  # their slots (a row does not wait for an empty slot)
    wait_arrival: Array  # their rows of StepDag.arrival
    mark_at: Array  # the marks that a row sets:
    mark: Array
    mark_slot: Array  # the slot of the messages that need the mark; -1: the mark is always needed
    send_after: Array  # of messages: the mark that they wait for, or AFTER_ALL
    arrival: Array  # of messages and gathers: the row of StepDag.arrival that they fill
    has_gradient: Array  # by parameter: 1 if it has a gradient
    events: Array  # by event: its kind (program/step_script.py)
    event_parameter: Array  # by event: the parameter, or -1
    event_run: Array  # by event: the row of the tape that completes the parameter's gradient, or -1


class Slots(NamedTuple):
    """The slots of the current plan: pairs (first row, number of rows) of tables of the Arena.

    All fields except `sync_units` are views of `table`.
    """

    table: Array  # [number of a slot, (first row, number of rows)]
    forward: Array  # by operator: compute rows
    backward: Array
    merge: Array  # by operator with partial results: compute rows of their merge
    partial: Array  # by operator: message rows of its partial results
    partial_gradient: Array  # by operator: message rows of the gradients of partial results
    activation: Array  # by value: message rows that bring it to its readers
    gradient: Array  # by value: message rows that bring its gradient back
    gathers: Array  # by gather of a block (ZeRO-3): a row of Arena.sync_units
    # By parameter: rows of Arena.sync_units, for itself or for the bundles in which it is the first.
    sync_units: Array


class Arena(NamedTuple):
    """The tables of rows that slots point to."""

    computes: Array  # [row, (device, nanoseconds)]
    # [row, (source, target, nanoseconds on its links, first link, second link, host overhead of source, of
    # target, nanoseconds in flight)]
    messages: Array
    # [row, (bytes that are summed, bytes in memory, bytes that are gathered)]; of a sync unit, a row for
    # each ring of its set. They differ if gradients are summed, or parameters gathered, in other dtypes.
    amounts: Array
    sync_units: Array  # [row, PUSH_FIRST … BUNDLED_COUNT]
    members: Array  # [row, (number of a parameter)]


class Rings(NamedTuple):
    """Rings of devices that take part in a collective together, and sets of rings.

    A sync unit has a set of rings: one ring for each group of devices that hold the same part of it.
    """

    set_at: Array  # the rings of set g are ring[set_at[g]:set_at[g + 1]]
    ring: Array
    all_reduces: Array  # by ring: 1 for an all-reduce, 0 for an all-gather or reduce-scatter
    member_at: Array  # the members of ring k are member[member_at[k]:member_at[k + 1]], devices
    member: Array
    first_link: Array  # by member: the links that it holds, or -1
    second_link: Array
    line_at: Array  # the algorithms of ring k are lines[line_at[k]:line_at[k + 1]]
    lines: Array  # [.., (fixed seconds, seconds per byte)] (costs/collectives.py)


class HostOverhead(NamedTuple):
    """Seconds by device that communication takes from the device itself (costs/host_overhead.py)."""

    enabled: bool  # whether any device has host overhead
    message: Array  # per message
    slice: Array  # per message with a slice of a parameter, in place of `message`
    byte: Array  # per byte
    sum: Array  # per all-reduce, which sums gradients
    collective: Array  # not seconds: the share of an all-reduce's time by which it slows computing


class SyncSettings(NamedTuple):
    """How a plan synchronises parameters; the rules are in program/step_script.py."""

    # BUCKETS: gradients are all-reduced in buckets. SHARDS: those of a block are reduce-scattered, every
    # holder updates its shard at the end of the step, and blocks are gathered. SERVER: a gradient is sent
    # to a server, which updates the parameter at the end of the step. SLICES: each slice is sent to a
    # server, updated and sent back as soon as its gradient is complete. SLICE_SUMS: each slice is
    # all-reduced, and every holder updates it.
    rule: int
    bucket_bytes: int  # a bucket of gradients is all-reduced when it has at least this many bytes
    returns_updates: bool  # blocks are gathered after the update; False for ZeRO-3
    # True if the rule is SLICES or SLICE_SUMS. Then a device updates a slice as soon as the device is free,
    # between any two tasks that it computes in the program's order.
    sliced: bool
    after_backward: bool  # gradients are sent or summed after the whole backward of a device
    urgency: Array  # by parameter: the urgency of its messages, as in StepDag.nodes


class StepDag(NamedTuple):
    """Memory for the nodes and edges of a step; allocated once and written for every plan."""

    nodes: Array  # [node, DURATION … LATENCY]
    # [edge, (source, target, delay)]: the node `target` starts `delay` nanoseconds after the end of the
    # node `source` (after the start of a stretch, whose duration is 0)
    edges: Array
    arrival: Array  # [row, device]: the node with which messages have arrived on a device, or -1
    # [mark, device]: the stretch in which a row ended on a device. Mark p, for each parameter p, is set by
    # the rows that add to the gradient of p; the other marks are numbered after these.
    mark_stretch: Array
    mark_offset: Array  # [mark, device]: nanoseconds from the start of that stretch
    # [row of the step script, device]: the node with which its result has arrived, or -1. A row of the step
    # script is an all-reduce, a transfer to or from servers, or an update (program/step_script.py).
    sync_arrival: Array


class DeviceProgress(NamedTuple):
    """The state of each device while the nodes of a step are written; arrays are by device.

    With `fold`, the tasks of a stretch are one node. Without `fold`, every task is a node that holds its
    device, and `stretch` is the node of the last task.
    """

    stretch: Array  # the node of its current stretch
    offset: Array  # nanoseconds since the start of the stretch
    busy_before: Array  # nanoseconds computed before the stretch
    receive_overhead: Array  # nanoseconds to receive messages, to be added to its next task
    load: Array  # by resource: its total busy nanoseconds
    arrivals: Array  # number of messages of the current instruction that it has received so far
    last_compute: Array  # the node of its last computation; without `fold` only
    has_host_overhead: bool
    fold: bool
