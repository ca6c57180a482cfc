"""Adds up ZeRO's memory: gathered parameters, gradients, and the flat buffers of collectives.

persistent.py counts the memory that stays: the shards with their optimizer state and, with ZeRO-2, the
parameters. A run is an instruction that computes an operator; a reduce-scatter is a Reduce instruction. An
all-reduce of shards over their replicas (HSDP) needs no memory: it sums in the buffer of the shards.

    gradient              from the first backward that adds to it until it is packed for the reduce-scatter
    buffer of gradients   during the reduce-scatter
    sum of a shard        from the start of the reduce-scatter until the update has ended
    buffer of a gather    from the start of the gather until its parameters are unpacked: at the end of the
                          gather or, with ZeRO-3, when the first run that waits for the gather starts
    gathered parameter    ZeRO-3: from its unpacking until the end of the last run that waits for the gather
                          and reads it
"""

# d: device; times are in nanoseconds, as in ledger.py

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.program.checks.shards import GatherUse, uses_of_gathers
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import (
    Gather,
    Reduce,
    Run,
    Update,
    gathered_element_bytes,
    held_element_bytes,
    reduced_element_bytes,
)
from raddle.program.weight_versions import parameters_by_op
from raddle.simulation.memory.ledger import NEVER, Array, Ledger, Span


def record_shards(ledger: Ledger) -> None:
    """Adds the entries of gathers, gradients and their buffers to the ledger."""
    uses = uses_of_gathers(ledger.program)
    for number, i in enumerate(ledger.program.instructions):
        if isinstance(i, Gather):
            _record_gather(ledger, number, i, uses.get(number))
    _record_gradients(ledger)


def _record_gather(ledger: Ledger, number: int, gather: Gather, use: GatherUse | None) -> None:
    """Adds the buffer of a gather and, with ZeRO-3, the parameters.

    use: the runs that wait for the gather, and those that read its parameters; None with ZeRO-2.
    """
    span, unpacked = ledger.collective_span(number), np.zeros(len(ledger.devices), np.int64)
    if use is not None:
        first = _first_start_and_last_end(ledger, use.waiting).start
        unpacked = np.where(first < NEVER, first, 0)
    unpacked = np.maximum(span.end, unpacked)
    ledger.add_by_device(_buffer_bytes(ledger, gather, full=True, shard=True), span.start, unpacked)
    if use is not None:
        for name, regions in zip(gather.parameters, gather.regions, strict=True):
            last = _first_start_and_last_end(ledger, use.reading[name]).end
            ledger.add_by_device(_region_bytes(ledger, name, regions), unpacked, last)


def _record_gradients(ledger: Ledger) -> None:
    """Adds the gradients of all steps, their buffers and sums."""
    program, read = ledger.program, parameters_by_op(ledger.program.graph)
    # By (parameter, step): the runs that add to its gradient, and where the gradient ends.
    backward: dict[tuple[str, int], list[int]] = {}
    ends: dict[tuple[str, int], Array] = {}
    updates: dict[tuple[str, int], int] = {}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run) and i.phase in "BW":
            for name in read[i.op]:
                backward.setdefault((name, i.key.step), []).append(number)
        elif isinstance(i, Update):
            updates[i.parameter, i.key.step] = number
    for number, i in enumerate(program.instructions):
        # Sums over replicas need no buffer of their own.
        if isinstance(i, Reduce) and not program.sums_replicas(i):
            span = ledger.collective_span(number)
            _record_sum(ledger, number, i, span, updates)
            for name in i.parameters:
                ends[name, i.key.step] = np.where(span.start < NEVER, span.start, -1)
    for (name, step), numbers in backward.items():
        if (name, step) in updates:  # the parameter is trained
            first = _first_start_and_last_end(ledger, numbers).start
            updated = ledger.span(updates[name, step]).end
            end = ends.get((name, step), np.full(len(ledger.devices), -1))
            ledger.add_by_device(
                ledger.parameter_bytes(name), first, np.where(end >= 0, end, updated)
            )


def _record_sum(
    ledger: Ledger, number: int, reduce: Reduce, span: Span, updates: dict[tuple[str, int], int]
) -> None:
    """Adds the buffer of a reduce-scatter, and the sums that it gives."""
    ledger.add_by_device(_buffer_bytes(ledger, reduce, full=True, shard=False), *span)
    numbers = [updates[name, reduce.key.step] for name in reduce.parameters]
    updated = _first_start_and_last_end(ledger, numbers).end
    ledger.add_by_device(_buffer_bytes(ledger, reduce, full=False, shard=True), span.start, updated)


def _first_start_and_last_end(ledger: Ledger, numbers: Sequence[int]) -> Span:
    """Returns by device when the first of some instructions starts, and when the last one ends."""
    first, last = ledger.empty_span()
    for number in numbers:
        span = ledger.span(number)
        first, last = np.minimum(first, span.start), np.maximum(last, span.end)
    return Span(first, last)


def _buffer_bytes(ledger: Ledger, i: Reduce | Gather, *, full: bool, shard: bool) -> Array:
    """Returns by device the bytes of a collective's buffers: full ones, one shard of them, or both."""
    program, nbytes = ledger.program, np.zeros(len(ledger.devices), np.int64)
    for name, regions in zip(i.parameters, i.regions, strict=True):
        width = (
            gathered_element_bytes(program, name)
            if isinstance(i, Gather)
            else reduced_element_bytes(program.plan, program.graph.values[name].dtype)
        )
        for region in regions:
            shards = full * region.shard_count + shard
            nbytes[list(region.devices)] += region.elements_per_shard * width * shards
    return nbytes


def _region_bytes(ledger: Ledger, name: str, regions: Sequence[ParameterRegion]) -> Array:
    """Returns by device the bytes of the regions of a parameter that it holds."""
    nbytes = np.zeros(len(ledger.devices), np.int64)
    for region in regions:
        width = held_element_bytes(ledger.program, name)
        nbytes[list(region.devices)] += region.box.volume * width
    return nbytes
