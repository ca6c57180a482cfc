"""Computes the memory of every device over time, and its peak, from a timeline.

Alive during the whole run (persistent.py): the parameters that a device holds, their gradients, optimizer
state, and the buffers and constants that it reads; with ZeRO (shards.py), only its shard of some of these.
Alive for some time:

    output            from the start of its forward run (or merge) to the end of its last use. A recomputed
                      output counts twice: until its last use before the recomputation, and after it
    received value    as an output, but from the start of its message, which arrives in an allocated buffer
    input of a batch  from the start of its first use to the end of its last
    gradient          from its first contribution to the end of the producer's backward. If the value was
                      received: until the gradient has been sent back. While it is sent, it also counts at
                      the target. In a pipeline, gradients that are sent to a device stay until the
                      backward of the segment that starts from them has ended (program/segments.py)
    workspace         scratch memory while a convolution runs, if the device's library needs it

A use is a forward run that reads the value, a message that sends it, or a backward run that needs it
(costs/saved_for_backward.py). A view has no memory of its own, but keeps the viewed value alive. All boxes
of a value on a device are freed together.

through_host: messages wait in the host's memory, as with gloo between GPUs. Then they free the source's
memory when they start, and take the target's memory when they are used.
"""

# d: device. Times are in nanoseconds. Memory that is alive from a to b counts at a, and no longer at b.

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Key, Merge, Move, Run
from raddle.simulation.memory.ledger import Ledger
from raddle.simulation.memory.micro_batch import record_micro_batch
from raddle.simulation.memory.persistent import persistent_bytes
from raddle.simulation.memory.shards import record_shards
from raddle.simulation.memory.value_sizes import ValueSizes
from raddle.simulation.memory.weights import record_contributions, record_versions
from raddle.simulation.timeline import Timeline

Array = np.ndarray


def peak_bytes(
    timeline: Timeline, *, through_host: bool = False, look: Callable[[], None] = lambda: None
) -> list[int]:
    """Returns by device the peak of its memory, in bytes.

    look: is called for every operator of a micro-batch; a search looks at its clock there, and may raise
    an exception.
    """
    # base: persistent bytes by device; first: the position of the first change of each device
    base, device, _, change = _changes(timeline, through_host=through_host, look=look)
    peaks = base.copy()
    if len(device):
        # The changes of each device add up to 0, so one running sum over all devices is right for each of
        # them.
        level = np.cumsum(change)
        first = np.flatnonzero(np.concatenate([[True], device[1:] != device[:-1]]))
        peaks[device[first]] += np.maximum(0, np.maximum.reduceat(level, first))
    return [int(p) for p in peaks]


def memory_curve(timeline: Timeline, device: int) -> tuple[Array, Array]:
    """Returns the times at which a device's memory changes, and the bytes from each time on."""
    return next(c for d, c in enumerate(memory_curves(timeline)) if d == device)


def memory_curves(timeline: Timeline) -> Iterator[tuple[Array, Array]]:
    """Yields the curve of each device, in order: times, and bytes from each time on."""
    base, device, times, change = _changes(timeline)
    # The changes of device d are border[d] to border[d + 1].
    border = np.searchsorted(device, np.arange(len(base) + 1))
    for d, (a, b) in enumerate(pairwise(border)):
        t = np.concatenate([[0], times[a:b]])
        level = base[d] + np.concatenate([[0], np.cumsum(change[a:b])])
        # By change: whether it is the last one at its time.
        last = np.concatenate([t[1:] != t[:-1], [True]])
        yield t[last], level[last]


def _changes(
    timeline: Timeline, *, through_host: bool = False, look: Callable[[], None] = lambda: None
) -> tuple[Array, Array, Array, Array]:
    """Returns persistent bytes by device; then device, time and bytes (+ or -) of each change, in order."""
    device, nbytes, begin, end = _record_all(
        timeline, through_host=through_host, look=look
    ).entries()
    times, change = np.concatenate([begin, end]), np.concatenate([nbytes, -nbytes])
    device = np.concatenate([device, device])
    span = 2 * (int(times.max(initial=0)) + 1)
    # Sorted by device, then by time; at the same time, memory is freed before it is allocated.
    order = np.argsort(device * span + 2 * times + (change > 0), kind="stable")
    lasting = persistent_bytes(timeline.program, timeline.cluster)
    return lasting, device[order], times[order], change[order]


def _record_all(timeline: Timeline, *, through_host: bool, look: Callable[[], None]) -> Ledger:
    """Returns a ledger of all memory that is not persistent."""
    program, ledger = timeline.program, Ledger(timeline, through_host=through_host)
    # groups: by micro-batch, the numbers of its instructions
    plan, groups = program.plan, dict[Key, list[int]]()
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run | Merge | Move):
            groups.setdefault(i.key, []).append(number)
    # By variant: micro-batches of one size on one replica of the pipeline share a variant
    # (program.Variant).
    sizes = [ValueSizes(program, v) for v in range(len(program.variants))]
    for key, numbers in groups.items():
        record_micro_batch(ledger, numbers, sizes[key.variant], look)
    if plan.microbatches > 1:
        record_contributions(ledger)  # gradients of parameters that are still to be added up
    if is_asynchronous(plan):
        record_versions(ledger)  # stashed old weights
    if program.sharded:
        record_shards(ledger)
    return ledger
