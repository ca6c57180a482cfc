"""Looks up when one micro-batch runs its operators, sends its messages and uses its values.

Phases of an operator (program.Run): F forward, R recomputation of the forward, B backward, W backward of
parameters if it is split from B. A segment is a sequence of operators without communication inside, which
is recomputed as one piece (program/segments.py). A span is the start and the end of a phase on each device,
a flight is the messages of one value (ledger.py). A contribution is one operator's part of a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from raddle.graph.gradients import inputs_with_gradient
from raddle.program.message_kind import MessageKind
from raddle.program.program import Merge, Move, Run
from raddle.simulation.memory.ledger import NEVER, Array, Flight, Ledger, Span
from raddle.simulation.memory.value_sizes import ValueSizes


class MicroBatchTimes:
    """The times of one micro-batch; numbers: the numbers of its instructions.

    spans: by (operator, phase), its start and end by device; phases "Fm" and "Bm" are the merges of its
    partial results, forward and backward. flights: by (value, kind of message), the messages.
    """

    def __init__(self, ledger: Ledger, numbers: Sequence[int]) -> None:
        self.ledger, self.empty_span = ledger, ledger.empty_span()
        self.spans: dict[tuple[str, str], Span] = {}
        self.flights: dict[tuple[str, MessageKind], Flight] = {}
        for number in numbers:
            i = ledger.program.instructions[number]
            if isinstance(i, Move):
                flight = ledger.flight(number, i)
                # first_alike: the first kind of message with the same content; such kinds count as one
                key = i.value, i.kind.first_alike
                earlier = self.flights.get(key)
                self.flights[key] = flight if earlier is None else earlier.concatenated(flight)
            elif isinstance(i, Run | Merge):
                self.spans[i.op, i.phase + "m" * isinstance(i, Merge)] = ledger.span(number)

    def span(self, op: str, phase: str) -> Span:
        """Returns when each device runs an operator in a phase."""
        return self.spans.get((op, phase), self.empty_span)

    def is_recomputed(self, op: str) -> bool:
        """Returns whether the micro-batch runs an operator's forward a second time."""
        return (op, "R") in self.spans

    def backward(self, op: str) -> Span:
        """Returns the span of an operator's backward: "B" and, if the backward is split, "W" together."""
        inputs, weights = self.span(op, "B"), self.span(op, "W")
        return Span(np.minimum(inputs.start, weights.start), np.maximum(inputs.end, weights.end))

    def last_departure(self, value: str, kind: MessageKind) -> Array:
        """Returns by device when it has sent the last of its messages of a value; -1 if it sends none."""
        end = self.empty_span.end.copy()
        flight = self.flights.get((value, kind))
        if flight is not None:
            np.maximum.at(end, flight.source, self.ledger.departure(flight))
        return end


class ValueUses(NamedTuple):
    """Times at which the values of a micro-batch are used: by value, then by device."""

    last_use: Mapping[str, Array]  # the end of its last use
    last_use_recomputed: Mapping[str, Array]  # the same for its copy that phase R computes again
    first_gradient: Mapping[str, Array]  # when the first contribution to its gradient begins


def value_uses(times: MicroBatchTimes, sizes: ValueSizes) -> ValueUses:
    """Returns when the values of a micro-batch are used."""
    return ValueUses(*_last_uses(times, sizes), _first_contributions(times, sizes))


def _last_uses(
    times: MicroBatchTimes, sizes: ValueSizes
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns `last_use` and `last_use_recomputed` of ValueUses.

    The loop goes from the last operator to the first, so that a view passes its last use on to the value
    that it views. A recomputed value has two copies: operators of its segment read the recomputed one, all
    others the first one.
    """
    last: dict[str, Array] = {}
    last_recomputed: dict[str, Array] = {}

    def add_use(name: str, end: Array, into: dict[str, Array] = last) -> None:
        """Notes that a value is used until `end` (by device), in the dict `into`."""
        earlier = into.get(name)
        into[name] = end if earlier is None else np.maximum(earlier, end)

    for op in reversed(sizes.graph.ops):
        saved, backward = sizes.saved[op.name], times.backward(op.name).end
        recomputed = times.is_recomputed(op.name)
        recomputation = times.span(op.name, "R").end
        for o in op.outputs:
            add_use(o, times.span(op.name, "Fm" if op.name in sizes.partial_bytes else "F").end)
            if (o, MessageKind.ACTIVATION) in times.flights:
                add_use(o, times.last_departure(o, MessageKind.ACTIVATION))
            if recomputed:
                add_use(o, recomputation, last_recomputed)
            if saved.output:
                add_use(o, backward, last_recomputed if recomputed else last)
        for name in set(op.inputs):
            add_use(name, times.span(op.name, "F").end)
            # needed: by device, until when the input is needed after the forward, or -1
            needed = np.maximum(recomputation, backward) if name in saved.inputs else recomputation
            in_segment = sizes.recomputed_together(name, op.name)
            add_use(name, np.where(in_segment, -1, needed))
            add_use(name, np.where(in_segment, needed, -1), last_recomputed)
        if op.name in sizes.free_views:  # a view; `free`: the devices on which it needs no memory
            (base, view), free = (op.inputs[0], op.outputs[0]), sizes.free_views[op.name]
            add_use(base, np.where(free, last[view], -1))
            if recomputed:
                in_segment = free & sizes.recomputed_together(base, op.name)
                add_use(base, np.where(in_segment, last_recomputed[view], -1), last_recomputed)
                add_use(base, np.where(free & ~in_segment, last_recomputed[view], -1))
    return last, last_recomputed


def _first_contributions(times: MicroBatchTimes, sizes: ValueSizes) -> dict[str, Array]:
    """Returns by value, then by device, when the first contribution to its gradient begins."""
    first: dict[str, Array] = {}
    for op in sizes.graph.ops:
        begin, end = times.span(op.name, "B")
        if op.kind in ("reshape", "permute"):
            # The gradient of the view's input is a view of the gradient of its output: both have the same
            # memory. It counts as the output's gradient until the backward ends, then as the input's.
            backward_end = np.where(end < 0, NEVER, end)
            begin = np.where(sizes.free_views[op.name], backward_end, begin)
        for name in inputs_with_gradient(op, sizes.program.active):
            earlier = first.get(name)
            first[name] = begin if earlier is None else np.minimum(earlier, begin)
    return first
