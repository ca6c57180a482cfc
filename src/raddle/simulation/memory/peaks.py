"""Memory of every device over time, from a timeline.

From the first moment to the last: the shares of parameters that a device holds, as much again for their
gradients, what the optimizer keeps, and the regions of buffers and constants that it reads; of divided
parameters, the rows that it is the home of (divided.py has the rest). While they are used:

    output            from the start of its forward run (or merge) to the end of its last use; where it
                      is computed again, twice: until its last use before that, and from then on
    received boxes    like outputs, from the start of the message: its buffer is there before it arrives
    input of a batch  from the start of its first use to the end of its last
    gradient          from the first contribution to the end of the producer's backward; where the value was
                      received, until it has been sent back; gradients on their way count where they go;
                      what a stage's backward starts with, until that has ended
    workspace         while a convolution runs, where the device's library takes one

A use is a forward run that reads it, a message that sends it, and a backward run that needs it:
costs/saved_for_backward.py says what PyTorch keeps for which operator. Views own no memory, but keep alive what they
look at. A device's pieces of a value are used together.

`through_host`: messages wait in the host's memory, as gloo's between GPUs do. They leave the device when
they start, and reach it when they are used.
"""

# d: device; times are in nanoseconds; what is alive from a to b counts at a and no more at b

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Key, Merge, Move, Run
from raddle.simulation.memory.layout import Layout
from raddle.simulation.memory.ledger import Ledger
from raddle.simulation.memory.micro_batch import record_micro_batch
from raddle.simulation.memory.persistent import persistent_bytes
from raddle.simulation.memory.weights import record_contributions, record_versions
from raddle.simulation.memory.zero3 import record_zero3
from raddle.simulation.timeline import Timeline

Array = np.ndarray


def peak_bytes(timeline: Timeline, *, through_host: bool = False) -> list[int]:
    """By device, the most that is alive at once."""
    base, device, _, change = _changes(timeline, through_host=through_host)
    peaks = base.copy()
    if len(device):
        # Every device's changes add up to nothing, so one running sum serves all of them.
        level = np.cumsum(change)
        first = np.flatnonzero(np.concatenate([[True], device[1:] != device[:-1]]))
        peaks[device[first]] += np.maximum(0, np.maximum.reduceat(level, first))
    return [int(p) for p in peaks]


def memory_curve(timeline: Timeline, device: int) -> tuple[Array, Array]:
    """Times at which a device's memory changes, and the bytes from then on."""
    return next(c for d, c in enumerate(memory_curves(timeline)) if d == device)


def memory_curves(timeline: Timeline) -> Iterator[tuple[Array, Array]]:
    """The curves of all devices, in order."""
    base, device, times, change = _changes(timeline)
    border = np.searchsorted(device, np.arange(len(base) + 1))
    for d, (a, b) in enumerate(pairwise(border)):
        t = np.concatenate([[0], times[a:b]])
        level = base[d] + np.concatenate([[0], np.cumsum(change[a:b])])
        last = np.concatenate([t[1:] != t[:-1], [True]])  # of several changes at a time, all count
        yield t[last], level[last]


def _changes(
    timeline: Timeline, *, through_host: bool = False
) -> tuple[Array, Array, Array, Array]:
    """What is always there by device, then device, time and bytes of each change, in order."""
    device, nbytes, begin, end = _record_all(timeline, through_host=through_host).entries()
    times, change = np.concatenate([begin, end]), np.concatenate([nbytes, -nbytes])
    device = np.concatenate([device, device])
    span = 2 * (int(times.max(initial=0)) + 1)
    # Memory is given back before it is taken at the same time.
    order = np.argsort(device * span + 2 * times + (change > 0), kind="stable")
    lasting = persistent_bytes(timeline.program, timeline.cluster)
    return lasting, device[order], times[order], change[order]


def _record_all(timeline: Timeline, *, through_host: bool) -> Ledger:
    """All that is alive for a while."""
    program, ledger = timeline.program, Ledger(timeline, through_host=through_host)
    plan, groups = program.plan, dict[Key, list[int]]()
    for number, i in enumerate(program.instructions):
        if isinstance(i, Move) and plan.parsed_sync.zero3 and i.kind.is_pull:
            continue  # brings rows of a divided parameter
        if isinstance(i, Run | Merge | Move):
            groups.setdefault(i.key, []).append(number)
    layouts = [Layout(program, v) for v in range(len(program.variants))]
    for key, numbers in groups.items():
        record_micro_batch(ledger, numbers, layouts[key.variant])
    if plan.microbatches > 1:
        record_contributions(ledger)
    if is_asynchronous(plan):
        record_versions(ledger)
    if plan.parsed_sync.zero3:
        record_zero3(ledger)
    return ledger
