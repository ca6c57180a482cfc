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
costs/kept.py says what PyTorch keeps for which operator. Views own no memory, but keep alive what they
look at. A device's pieces of a value are used together.

`through_host`: messages wait in the host's memory, as gloo's between GPUs do. They leave the device when
they start, and reach it when they are used.
"""

# d: device; times are in nanoseconds; what is alive from a to b counts at a and no more at b

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from raddle.costs.compute import family
from raddle.graph.gradients import graded_inputs, has_backward
from raddle.graph.graph import Op
from raddle.plans.pipelining import is_asynchronous
from raddle.program.messages import MessageKind, Subject
from raddle.program.program import Key, Merge, Move, Run, Update, message_bytes
from raddle.program.versions import parameters_of
from raddle.simulation.memory.divided import record_divided
from raddle.simulation.memory.layout import Layout
from raddle.simulation.timeline import Timeline

Array = np.ndarray

NEVER = np.iinfo(np.int64).max


# -- what the user asks for -----------------------------------------------------------------------


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
    ledger = _Ledger(timeline, through_host)
    device, nbytes, begin, end = ledger.entries()
    times, change = np.concatenate([begin, end]), np.concatenate([nbytes, -nbytes])
    device = np.concatenate([device, device])
    span = 2 * (int(times.max(initial=0)) + 1)
    # Memory is given back before it is taken at the same time.
    order = np.argsort(device * span + 2 * times + (change > 0), kind="stable")
    return ledger.always(), device[order], times[order], change[order]


# -- when things are there, by micro-batch (layout.py says where) ------------------------------------


class _Span(NamedTuple):
    """By device, when something starts (or NEVER) and ends (or -1)."""

    start: Array
    end: Array


class _Flight(NamedTuple):
    """Messages of one move."""

    source: Array
    target: Array
    nbytes: Array
    start: Array
    end: Array

    def joined(self, other: _Flight) -> _Flight:
        """Stages return their parts of a gradient one by one."""
        return _Flight(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class _Ledger:
    """Everything that is alive for a while: device, bytes, from when, until when."""

    def __init__(self, timeline: Timeline, through_host: bool) -> None:
        self.timeline, self.program = timeline, timeline.program
        self.through_host = through_host
        devices = timeline.cluster.devices[: self.program.plan.devices]
        self.conv = np.array([d.workspace["conv"] for d in devices])
        self.layouts = [Layout(self.program, v) for v in range(len(self.program.variants))]
        self.layout = self.layouts[0]
        self.columns: list[tuple[Array, Array, Array, Array]] = []
        tasks = timeline.tasks
        self.border = np.searchsorted(
            tasks.instruction, np.arange(len(self.program.instructions) + 1)
        )
        self.sizes: dict[int, Array] = {}
        groups: dict[Key, list[int]] = {}
        for number, i in enumerate(self.program.instructions):
            if isinstance(i, Run | Merge) or (isinstance(i, Move) and not self._divided(i)):
                groups.setdefault(i.key, []).append(number)
        for key, numbers in groups.items():
            _Micro(self, numbers, self.layouts[key.replica]).record()
        if self.program.plan.microbatches > 1:
            self._record_contributions()
        if is_asynchronous(self.program.plan):
            self._record_versions()
        if self.program.plan.syncing.divided:
            record_divided(self)

    def _divided(self, move: Move) -> bool:
        """Whether it brings rows of a divided parameter (divided.py)."""
        return self.program.plan.syncing.divided and move.what.pulls

    def always(self) -> Array:
        """What lasts; and what a library for products takes once and keeps."""
        total = self.layout.static()
        using = {
            d
            for variant in self.program.variants
            for op in variant.graph.ops
            if family(op) == "matmul"
            for d in variant.tiles[op.name].devices
        }
        for d in using:
            total[d] += int(self.timeline.cluster.devices[d].workspace["matmul"])
        return total

    def _record_contributions(self) -> None:
        """Gradients of weights that are added to those of the micro-batches before."""
        phase = "W" if self.program.plan.split_backward else "B"
        read, nbytes = parameters_of(self.program.graph), dict[str, Array]()
        for number, i in enumerate(self.program.instructions):
            if isinstance(i, Run) and i.phase == phase and i.key.micro and read[i.op]:
                if i.op not in nbytes:
                    nbytes[i.op] = self._largest(read[i.op])
                self.add(np.arange(self.layout.count), nbytes[i.op], *self.span(number))

    def _largest(self, names: Sequence[str]) -> Array:
        """By device, of the largest of some parameters."""
        return np.asarray(np.max([self.nbytes_of(name) for name in names], axis=0))

    def nbytes_of(self, name: str) -> Array:
        """By device, of a parameter."""
        nbytes = self.layout.none()
        for share in self.program.shares[name]:
            nbytes[list(share.devices)] += share.box.volume * self.program.width(name)
        return nbytes

    def _record_versions(self) -> None:
        """Weights that an update has replaced, until the last backward that uses them."""
        read = parameters_of(self.program.graph)
        last: dict[tuple[str, int], Array] = {}  # parameter and version -> the end of its last use
        replaced: dict[str, list[Array]] = {}  # parameter -> by update, when it begins
        for number, i in enumerate(self.program.instructions):
            if isinstance(i, Update):
                replaced.setdefault(i.parameter, []).append(self.span(number).start)
            elif isinstance(i, Run) and i.versions:
                end = self.span(number).end
                for name, version in zip(read[i.op], i.versions, strict=True):
                    known = last.get((name, version))
                    last[name, version] = end if known is None else np.maximum(known, end)
        for (name, version), end in last.items():
            starts = replaced.get(name, [])
            if version < len(starts):
                nbytes = self.nbytes_of(name)
                self.add(np.arange(self.layout.count), nbytes, starts[version], end)

    def entries(self) -> list[Array]:
        if not self.columns:
            return [np.empty(0, np.int64)] * 4
        return [np.concatenate(column) for column in zip(*self.columns, strict=True)]

    def add(self, device: Array, nbytes: Array, begin: Array, end: Array) -> None:
        real = (nbytes > 0) & (begin < end)
        self.columns.append((device[real], nbytes[real], begin[real], end[real]))

    def span(self, number: int) -> _Span:
        """When each device executes an instruction."""
        a, b = self.border[number : number + 2]
        start = np.full(self.layout.count, NEVER)
        end = np.full(self.layout.count, -1)
        devices = self.timeline.tasks.device[a:b]
        start[devices], end[devices] = self.timeline.start[a:b], self.timeline.end[a:b]
        return _Span(start, end)

    def flight(self, number: int, move: Move) -> _Flight:
        """When each message is on its way; the tasks of an instruction start with its messages."""
        a = self.border[number]
        b = a + len(move.messages)
        key = id(move.messages)
        if key not in self.sizes:
            self.sizes[key] = np.array(
                [message_bytes(self.program, move, m) for m in move.messages]
            )
        t = self.timeline
        return _Flight(
            t.tasks.source[a:b], t.tasks.device[a:b], self.sizes[key], t.start[a:b], t.end[a:b]
        )


class _Micro:
    """One micro-batch."""

    def __init__(self, ledger: _Ledger, numbers: Sequence[int], layout: Layout) -> None:
        self.ledger, self.layout, self.program = ledger, layout, ledger.program
        self.devices = np.arange(self.layout.count)
        none = np.full(self.layout.count, NEVER), np.full(self.layout.count, -1)
        self.absent = _Span(*none)
        self.spans: dict[tuple[str, str], _Span] = {}
        self.flights: dict[tuple[str, MessageKind], _Flight] = {}
        for number in numbers:
            i = self.program.instructions[number]
            if isinstance(i, Move):
                flight = ledger.flight(number, i)
                key = i.value, i.what.like
                known = self.flights.get(key)
                self.flights[key] = flight if known is None else known.joined(flight)
            elif isinstance(i, Run | Merge):
                self.spans[i.op, i.phase + "m" * isinstance(i, Merge)] = ledger.span(number)
        self.last: Mapping[str, Array] = {}  # by value and device, the end of its last use
        self.again: Mapping[str, Array] = {}  # the same, of values that were computed again
        self.first: Mapping[str, Array] = {}  # the first contribution to its gradient

    def span(self, op: str, phase: str) -> _Span:
        return self.spans.get((op, phase), self.absent)

    def add(self, nbytes: Array, begin: Array, end: Array) -> None:
        self.ledger.add(self.devices, nbytes, begin, end)

    def record(self) -> None:
        self.last, self.again = self._last_uses()
        self.first = self._first_contributions()
        for op in self.layout.graph.ops:
            self._record_output(op)
            if has_backward(op, self.program.active):
                self._record_gradients(op)
            if family(op) == "conv" and self.ledger.conv.any():
                self._record_workspace(op)
        for name, nbytes in self.layout.inputs.items():
            self._record_input(name, nbytes)
        for (value, what), flight in self.flights.items():
            self._record_flight(value, what, flight)

    def backward(self, op: str) -> _Span:
        """Of activations and, where that is apart, of parameters."""
        inputs, weights = self.span(op, "B"), self.span(op, "W")
        return _Span(np.minimum(inputs.start, weights.start), np.maximum(inputs.end, weights.end))

    def _last_uses(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """From the last operator to the first, so that a view passes on how long it is used.

        What is computed again is used by the operators of its segment, the first one by all others.
        """
        last: dict[str, Array] = {}
        again: dict[str, Array] = {}

        def use(name: str, end: Array, into: dict[str, Array] = last) -> None:
            known = into.get(name)
            into[name] = end if known is None else np.maximum(known, end)

        for op in reversed(self.layout.graph.ops):
            keeps, backward = self.layout.kept[op.name], self.backward(op.name).end
            recomputed = (op.name, "R") in self.spans
            rerun = self.span(op.name, "R").end
            for o in op.outputs:
                use(o, self.span(op.name, "Fm" if op.name in self.layout.part else "F").end)
                if (o, MessageKind.ACTIVATION) in self.flights:
                    use(o, self._sent(self.flights[o, MessageKind.ACTIVATION]))
                if recomputed:
                    use(o, rerun, again)
                if keeps.output:
                    use(o, backward, again if recomputed else last)
            for name in set(op.inputs):
                use(name, self.span(op.name, "F").end)
                needed = np.maximum(rerun, backward) if name in keeps.inputs else rerun
                inside = self.layout.together(name, op.name)
                use(name, np.where(inside, -1, needed))
                use(name, np.where(inside, needed, -1), again)
            if op.name in self.layout.free:
                (base, seen), free = (op.inputs[0], op.outputs[0]), self.layout.free[op.name]
                use(base, np.where(free, last[seen], -1))
                if recomputed:
                    inside = free & self.layout.together(base, op.name)
                    use(base, np.where(inside, again[seen], -1), again)
                    use(base, np.where(free & ~inside, again[seen], -1))
        return last, again

    def _first_contributions(self) -> dict[str, Array]:
        first: dict[str, Array] = {}
        for op in self.layout.graph.ops:
            begin, end = self.span(op.name, "B")
            if op.kind in ("reshape", "permute"):
                # The gradient of such a view is handed on as it is, and not made anew.
                done = np.where(end < 0, NEVER, end)
                begin = np.where(self.layout.free[op.name], done, begin)
            for name in graded_inputs(op, self.program.active):
                known = first.get(name)
                first[name] = begin if known is None else np.minimum(known, begin)
        return first

    def _sent(self, flight: _Flight) -> Array:
        """By device, when the last of its messages has gone."""
        end = np.full(self.layout.count, -1)
        gone = flight.start if self.ledger.through_host else flight.end
        np.maximum.at(end, flight.source, gone)
        return end

    def _reached(self, flight: _Flight, used: Array) -> Array:
        """When each message is on the device that it goes to; `used`: by device, when it is used."""
        if not self.ledger.through_host:
            return flight.start
        first = used[flight.target]
        return np.where(first < NEVER, np.maximum(flight.end, first), flight.end)

    def _read(self, value: str) -> Array:
        """By device, when a forward first reads a value."""
        begin = np.full(self.layout.count, NEVER)
        for op in self.layout.graph.ops:
            if value in op.inputs:
                begin = np.minimum(begin, self.span(op.name, "F").start)
        return begin

    def _record_workspace(self, op: Op) -> None:
        """As large as the input and the output: both are laid out anew, whichever way it goes."""
        source = op.inputs[0]
        read = self.layout.size.get(source, self.layout.inputs.get(source, self.layout.none()))
        nbytes = (self.ledger.conv * (read + self.layout.size[op.outputs[0]])).astype(np.int64)
        for phase in ("F", "R", "B", "W"):
            self.add(nbytes, *self.span(op.name, phase))

    def _record_output(self, op: Op) -> None:
        forward, merge = self.span(op.name, "F"), self.span(op.name, "Fm")
        if op.name in self.layout.part:
            end = np.maximum(forward.end, self._parts_used(op))
            if (op.outputs[0], MessageKind.PARTIAL) in self.flights:
                end = np.maximum(end, self._sent(self.flights[op.outputs[0], MessageKind.PARTIAL]))
            self.add(self.layout.part[op.name], forward.start, end)
            forward = merge
        for o in op.outputs:
            owned = self.layout.size[o]
            if op.name in self.layout.free:
                owned = np.where(self.layout.free[op.name], 0, owned)
            self.add(owned, forward.start, self.last[o])
            if (op.name, "R") in self.spans and op.name not in self.layout.part:
                self.add(owned, self.span(op.name, "R").start, self.again[o])
        extra = self.layout.kept[op.name].extra
        if extra:
            elements = self.layout.size[op.outputs[0]] // self.program.width(op.outputs[0])
            made, end = forward, self.backward(op.name).end
            if (op.name, "R") in self.spans:
                self.add(extra * elements, *forward)
                made = self.span(op.name, "R")
            self.add(extra * elements, made.start, end)

    def _parts_used(self, op: Op) -> Array:
        """Until they are merged; what is not just added is needed again to take the gradient apart."""
        merged = self.span(op.name, "Fm").end
        if op.space.combine == "sum":
            return merged
        return np.asarray(np.maximum(merged, self.span(op.name, "Bm").end))

    def _record_gradients(self, op: Op) -> None:
        backward, merge = self.backward(op.name), self.span(op.name, "Bm")
        end = backward.end
        if op.name in self.layout.part:
            begin, end = merge
            flight = self.flights.get((op.outputs[0], MessageKind.PARTIAL_GRADIENT))
            if flight is not None:
                begin = begin.copy()
                np.minimum.at(begin, flight.target, flight.start)
                end = np.maximum(end, self._sent(flight))
            self.add(self.layout.part[op.name], begin, backward.end)
        for o in op.outputs:
            first = self.first.get(o)
            flight = self.flights.get((o, MessageKind.GRADIENT))
            if first is None:
                continue
            until = end
            if flight is not None:
                first = first.copy()
                np.minimum.at(first, flight.target, self._reached(flight, backward.start))
                if self.program.plan.stages:
                    until = end.copy()
                    for d in np.unique(flight.target):
                        until[d] = max(until[d], self._piece_ends(op, int(d)))
            self.add(self.layout.size[o], first, until)

    def _piece_ends(self, op: Op, device: int) -> int:
        """When the backward of an operator's segment ends: it is called with what it starts with."""
        piece = self.layout.piece(op.name, device)
        return max((int(self.backward(own).end[device]) for own in piece), default=-1)

    def _record_input(self, name: str, nbytes: Array) -> None:
        if name in self.last:
            self.add(nbytes, self._read(name), self.last[name])

    def _record_flight(self, value: str, what: MessageKind, flight: _Flight) -> None:
        """What is on its way counts where it goes; a gradient, until it has gone, also where it was."""
        until, begin = flight.end, flight.start
        if what.activates:
            until = np.maximum(until, self.last[value][flight.target])
            begin = self._reached(flight, self._read(value))
        elif what.forward:
            used = self._parts_used(self.program.producer(value))
            until = np.maximum(until, used[flight.target])
        elif what.backward and what.subject is Subject.RESULT:
            gone = flight.start if self.ledger.through_host else until
            first = self.first[value][flight.source]
            self.ledger.add(flight.source, flight.nbytes, first, gone)
            producer = self.program.producer(value).name
            begin = self._reached(flight, self.backward(producer).start)
        self.ledger.add(flight.target, flight.nbytes, begin, until)
