"""Records the memory of one micro-batch: outputs, inputs, gradients, messages, workspaces; see peaks.py.

Phases of an operator: F forward, R recomputation of the forward, B backward, W backward of parameters (if
it is split from B); Fm and Bm are the merges of partial results, forward and backward. A span is the start
and the end of a phase on each device, a flight is the messages of one value (ledger.py). A workspace is
scratch memory that a device's library needs while an operator runs.
"""

# o: output of an operator, d: device

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from raddle.costs.compute import family
from raddle.graph.gradients import has_backward
from raddle.graph.graph import Op
from raddle.program.message_kind import MessageKind, Subject
from raddle.simulation.memory.ledger import NEVER, Array, Flight, Ledger
from raddle.simulation.memory.micro_batch_times import MicroBatchTimes, value_uses
from raddle.simulation.memory.value_sizes import ValueSizes


def record_micro_batch(
    ledger: Ledger, numbers: Sequence[int], sizes: ValueSizes, look: Callable[[], None]
) -> None:
    """Adds the entries of a micro-batch to the ledger.

    numbers: the numbers of its instructions. look: is called for every operator.
    """
    _MicroBatchMemory(ledger, MicroBatchTimes(ledger, numbers), sizes).record(look)


class _MicroBatchMemory:
    """Adds the entries of one micro-batch to the ledger."""

    def __init__(self, ledger: Ledger, times: MicroBatchTimes, sizes: ValueSizes) -> None:
        self.ledger, self.times, self.sizes, self.program = ledger, times, sizes, ledger.program
        self.uses = value_uses(times, sizes)
        devices = ledger.timeline.cluster.devices[: sizes.count]
        # By device: bytes of workspace for each byte of input and output of a convolution.
        self.workspace = np.array([d.workspace["conv"] for d in devices])

    def record(self, look: Callable[[], None]) -> None:
        """Adds all entries of the micro-batch; look: is called for every operator."""
        for op in self.sizes.graph.ops:
            look()
            self._record_output(op)
            if has_backward(op, self.program.active):
                self._record_gradients(op)
            if family(op) == "conv" and self.workspace.any():
                self._record_workspace(op)
        for name, nbytes in self.sizes.input_bytes.items():
            if name in self.uses.last_use:
                self.ledger.add_by_device(nbytes, self._first_read(name), self.uses.last_use[name])
        for (value, kind), flight in self.times.flights.items():
            self._record_messages(value, kind, flight)

    def _first_read(self, value: str) -> Array:
        """Returns by device when a forward reads a value for the first time."""
        begin = np.full(self.sizes.count, NEVER)
        for op in self.sizes.graph.ops:
            if value in op.inputs:
                begin = np.minimum(begin, self.times.span(op.name, "F").start)
        return begin

    def _record_workspace(self, op: Op) -> None:
        """Adds the workspace of a convolution: a multiple of its input and output, in every phase."""
        source = op.inputs[0]
        read = self.sizes.output_bytes.get(
            source, self.sizes.input_bytes.get(source, self.sizes.zeros())
        )
        nbytes = (self.workspace * (read + self.sizes.output_bytes[op.outputs[0]])).astype(np.int64)
        for phase in ("F", "R", "B", "W"):
            self.ledger.add_by_device(nbytes, *self.times.span(op.name, phase))

    def _record_output(self, op: Op) -> None:
        """Adds an operator's partial results, its outputs, and the extra bytes saved for backward."""
        times, add = self.times, self.ledger.add_by_device
        forward, recomputation = times.span(op.name, "F"), times.span(op.name, "R")
        if op.name in self.sizes.partial_bytes:
            end = np.maximum(forward.end, self._last_use_of_partials(op))
            end = np.maximum(end, times.last_departure(op.outputs[0], MessageKind.PARTIAL))
            add(self.sizes.partial_bytes[op.name], forward.start, end)
            forward = times.span(op.name, "Fm")  # the merge makes the outputs
        for o in op.outputs:
            # Bytes that the output allocates itself: none where it is a view of memory that the device
            # holds already (ValueSizes.free_views).
            owned = self.sizes.output_bytes[o]
            if op.name in self.sizes.free_views:
                owned = np.where(self.sizes.free_views[op.name], 0, owned)
            add(owned, forward.start, self.uses.last_use[o])
            if times.is_recomputed(op.name) and op.name not in self.sizes.partial_bytes:
                add(owned, recomputation.start, self.uses.last_use_recomputed[o])
        extra = self.sizes.saved[op.name].extra  # bytes for each element, as for a dropout mask
        nbytes = self.sizes.copies.get(op.name, self.sizes.zeros())
        if extra:
            elements = self.sizes.output_bytes[op.outputs[0]] // self.program.element_bytes(
                op.outputs[0]
            )
            nbytes = nbytes + elements * extra.numerator // extra.denominator
        if nbytes.any():
            last_run = forward  # the run whose extra bytes the backward reads
            if times.is_recomputed(op.name):
                add(nbytes, *forward)
                last_run = recomputation
            add(nbytes, last_run.start, times.backward(op.name).end)

    def _last_use_of_partials(self, op: Op) -> Array:
        """Returns by device when partial results are used last.

        Their merge uses them last. If they are not simply summed (log-sum-exp, moments), the backward of
        the merge uses them again.
        """
        merged = self.times.span(op.name, "Fm").end
        if op.space.combine == "sum":
            return merged
        return np.asarray(np.maximum(merged, self.times.span(op.name, "Bm").end))

    def _record_gradients(self, op: Op) -> None:
        """Adds the gradients of an operator's outputs and partial results."""
        times = self.times
        backward = times.backward(op.name)
        end = backward.end
        if op.name in self.sizes.partial_bytes:  # the backward of the merge gives their gradients
            begin, end = times.span(op.name, "Bm")
            flight = times.flights.get((op.outputs[0], MessageKind.PARTIAL_GRADIENT))
            if flight is not None:
                begin = begin.copy()
                np.minimum.at(begin, flight.target, flight.start)
                end = np.maximum(
                    end, times.last_departure(op.outputs[0], MessageKind.PARTIAL_GRADIENT)
                )
            self.ledger.add_by_device(self.sizes.partial_bytes[op.name], begin, backward.end)
        for o in op.outputs:
            first = self.uses.first_gradient.get(o)
            flight = times.flights.get((o, MessageKind.GRADIENT))
            if first is None:
                continue
            until = end
            if flight is not None:
                first = first.copy()
                # A message through the host is copied to the device only when the backward that needs it
                # starts.
                arrival = self.ledger.arrival(flight, backward.start)
                np.minimum.at(first, flight.target, arrival)
                # In a pipeline, the backward of a segment starts from this gradient, and holds it until the
                # end of the segment's backward.
                if self.program.plan.stages:
                    until = end.copy()
                    for d in np.unique(flight.target):
                        until[d] = max(until[d], self._segment_backward_end(op, int(d)))
            self.ledger.add_by_device(self.sizes.output_bytes[o], first, until)

    def _segment_backward_end(self, op: Op, device: int) -> int:
        """Returns when the backward of an operator's segment ends on a device.

        A segment (program/segments.py) runs as one call, which holds the gradients that it starts from.
        """
        segment = self.sizes.segment_of(op.name, device)
        return max((int(self.times.backward(name).end[device]) for name in segment), default=-1)

    def _record_messages(self, value: str, kind: MessageKind, flight: Flight) -> None:
        """Adds messages to their target; gradients also count on their source until they have been sent."""
        until, begin = flight.end, flight.start
        if kind.is_activation:
            until = np.maximum(until, self.uses.last_use[value][flight.target])
            begin = self.ledger.arrival(flight, self._first_read(value))
        elif kind.is_forward:  # a partial result
            used = self._last_use_of_partials(self.program.producer(value))
            until = np.maximum(until, used[flight.target])
        elif kind.is_backward and kind.subject is Subject.RESULT:  # gradient of a complete result
            first = self.uses.first_gradient[value][flight.source]
            self.ledger.add(flight.source, flight.nbytes, first, self.ledger.departure(flight))
            producer = self.program.producer(value).name
            begin = self.ledger.arrival(flight, self.times.backward(producer).start)
        self.ledger.add(flight.target, flight.nbytes, begin, until)
