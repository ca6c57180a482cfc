"""Records what one micro-batch has in memory: outputs, inputs, gradients, messages, workspaces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.costs.compute import family
from raddle.graph.gradients import has_backward
from raddle.graph.graph import Op
from raddle.program.message_kind import MessageKind, Subject
from raddle.simulation.memory.layout import Layout
from raddle.simulation.memory.ledger import NEVER, Array, Flight, Ledger
from raddle.simulation.memory.times import MicroTimes, uses_of


def record_micro(ledger: Ledger, numbers: Sequence[int], layout: Layout) -> None:
    """Adds the entries of a micro-batch, given its instructions."""
    _Micro(ledger, MicroTimes(ledger, numbers), layout).record()


class _Micro:
    def __init__(self, ledger: Ledger, times: MicroTimes, layout: Layout) -> None:
        self.ledger, self.times, self.layout, self.program = ledger, times, layout, ledger.program
        self.uses = uses_of(times, layout)
        devices = ledger.timeline.cluster.devices[: layout.count]
        self.workspace = np.array([d.workspace["conv"] for d in devices])

    def record(self) -> None:
        for op in self.layout.graph.ops:
            self._record_output(op)
            if has_backward(op, self.program.active):
                self._record_gradients(op)
            if family(op) == "conv" and self.workspace.any():
                self._record_workspace(op)
        for name, nbytes in self.layout.inputs.items():
            if name in self.uses.last:
                self.ledger.add_by_device(nbytes, self._read(name), self.uses.last[name])
        for (value, what), flight in self.times.flights.items():
            self._record_flight(value, what, flight)

    def _read(self, value: str) -> Array:
        """By device, when a forward first reads a value."""
        begin = np.full(self.layout.count, NEVER)
        for op in self.layout.graph.ops:
            if value in op.inputs:
                begin = np.minimum(begin, self.times.span(op.name, "F").start)
        return begin

    def _record_workspace(self, op: Op) -> None:
        """As large as the input and the output: both are laid out anew, whichever way it goes."""
        source = op.inputs[0]
        read = self.layout.size.get(source, self.layout.inputs.get(source, self.layout.none()))
        nbytes = (self.workspace * (read + self.layout.size[op.outputs[0]])).astype(np.int64)
        for phase in ("F", "R", "B", "W"):
            self.ledger.add_by_device(nbytes, *self.times.span(op.name, phase))

    def _record_output(self, op: Op) -> None:
        times, add = self.times, self.ledger.add_by_device
        forward, rerun = times.span(op.name, "F"), times.span(op.name, "R")
        if op.name in self.layout.part:
            end = np.maximum(forward.end, self._parts_used(op))
            end = np.maximum(end, times.sent(op.outputs[0], MessageKind.PARTIAL))
            add(self.layout.part[op.name], forward.start, end)
            forward = times.span(op.name, "Fm")
        for o in op.outputs:
            owned = self.layout.size[o]
            if op.name in self.layout.free:
                owned = np.where(self.layout.free[op.name], 0, owned)
            add(owned, forward.start, self.uses.last[o])
            if times.recomputed(op.name) and op.name not in self.layout.part:
                add(owned, rerun.start, self.uses.again[o])
        extra = self.layout.kept[op.name].extra
        if extra:
            nbytes = extra * (
                self.layout.size[op.outputs[0]] // self.program.element_bytes(op.outputs[0])
            )
            made = forward
            if times.recomputed(op.name):
                add(nbytes, *forward)
                made = rerun
            add(nbytes, made.start, times.backward(op.name).end)

    def _parts_used(self, op: Op) -> Array:
        """Until they are merged; what is not just added is needed again to take the gradient apart."""
        merged = self.times.span(op.name, "Fm").end
        if op.space.combine == "sum":
            return merged
        return np.asarray(np.maximum(merged, self.times.span(op.name, "Bm").end))

    def _record_gradients(self, op: Op) -> None:
        times = self.times
        backward = times.backward(op.name)
        end = backward.end
        if op.name in self.layout.part:
            begin, end = times.span(op.name, "Bm")
            flight = times.flights.get((op.outputs[0], MessageKind.PARTIAL_GRADIENT))
            if flight is not None:
                begin = begin.copy()
                np.minimum.at(begin, flight.target, flight.start)
                end = np.maximum(end, times.sent(op.outputs[0], MessageKind.PARTIAL_GRADIENT))
            self.ledger.add_by_device(self.layout.part[op.name], begin, backward.end)
        for o in op.outputs:
            first = self.uses.first.get(o)
            flight = times.flights.get((o, MessageKind.GRADIENT))
            if first is None:
                continue
            until = end
            if flight is not None:
                first = first.copy()
                reached = self.ledger.reached(flight, backward.start)
                np.minimum.at(first, flight.target, reached)
                if self.program.plan.stages:
                    until = end.copy()
                    for d in np.unique(flight.target):
                        until[d] = max(until[d], self._piece_ends(op, int(d)))
            self.ledger.add_by_device(self.layout.size[o], first, until)

    def _piece_ends(self, op: Op, device: int) -> int:
        """When the backward of an operator's segment ends: it is called with what it starts with."""
        piece = self.layout.piece(op.name, device)
        return max((int(self.times.backward(own).end[device]) for own in piece), default=-1)

    def _record_flight(self, value: str, what: MessageKind, flight: Flight) -> None:
        """What is on its way counts where it goes; a gradient, until it has gone, also where it was."""
        until, begin = flight.end, flight.start
        if what.is_activation:
            until = np.maximum(until, self.uses.last[value][flight.target])
            begin = self.ledger.reached(flight, self._read(value))
        elif what.is_forward:
            used = self._parts_used(self.program.producer(value))
            until = np.maximum(until, used[flight.target])
        elif what.is_backward and what.subject is Subject.RESULT:
            first = self.uses.first[value][flight.source]
            self.ledger.add(flight.source, flight.nbytes, first, self.ledger.gone(flight))
            producer = self.program.producer(value).name
            begin = self.ledger.reached(flight, self.times.backward(producer).start)
        self.ledger.add(flight.target, flight.nbytes, begin, until)
