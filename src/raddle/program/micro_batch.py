"""The instructions of one micro-batch, stage by stage.

Forward, operator by operator: run its tiles, merge what is partial, send what other devices need.
Backward, in reverse: gradients come back on the same edges and are summed at the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from raddle.graph.gradients import graded_inputs, has_backward, trained_parameters
from raddle.graph.graph import Op
from raddle.program.collective import recognise_collective
from raddle.program.instruction_writer import sorted_deps
from raddle.program.lower_variant import LoweredVariant
from raddle.program.message_kind import MessageKind, Subject, check_all_kinds_sent
from raddle.program.program import Instruction, Key, Merge, Message, Move, Run

check_all_kinds_sent(
    (
        MessageKind.ACTIVATION,
        MessageKind.PARTIAL,
        MessageKind.GRADIENT,
        MessageKind.PARTIAL_GRADIENT,
    ),
    Subject.RESULT,
    Subject.PART,
)


class Writing(Protocol):
    """What a micro-batch needs of the program that it is part of."""

    def emit(self, instruction: Instruction) -> int: ...

    def reads(self, name: str, key: Key, op: Op) -> Iterable[int]:
        """What a use of a parameter or a buffer waits for."""

    def complete(self, name: str, key: Key, at: int) -> None:
        """Takes note of a contribution to a parameter's gradient."""


class Micro:
    """One micro-batch on its way."""

    def __init__(self, settled: LoweredVariant, key: Key, write: Writing) -> None:
        self.settled, self.key, self.write = settled, key, write
        self.ready: dict[str, list[int]] = {}  # value -> the instructions that make it available
        self.ran: dict[str, int] = {}
        self.given: dict[str, list[int]] = {}  # value -> those that contribute to its gradient
        self.by_stage: dict[
            tuple[str, int], list[int]
        ] = {}  # the same, by the stage of the operator
        self.later: list[tuple[Op, list[int]]] = []  # whose parameters wait for their gradients
        self.again: dict[str, int] = {}  # recomputed operators
        self.after: list[int] = []  # what a backward waits for without a gradient of it
        self.signals: list[int] = []  # what brings the signals that the present action waits for

    # -- forward -----------------------------------------------------------------------------------

    def forward(self, ops: Sequence[Op], after: Iterable[int] = ()) -> None:
        """Runs operators of a stage; `after`: what brings their parameters where these are divided."""
        settled, key = self.settled, self.key
        for op in ops:
            deps = {
                *after,
                *self.signals,
                *(i for name in op.inputs for i in self.ready.get(name, [])),
            }
            deps |= {i for name in op.inputs for i in self.write.reads(name, key, op)}
            at = self.write.emit(
                Run(op.name, "F", key, settled.devices[op.name], tuple(sorted(deps)))
            )
            self.ran[op.name] = at
            if op.name in settled.merges:
                at = self._merge(op, "F", [at])
            for name in op.outputs:
                self.ready[name] = [at]
                if settled.messages[name]:
                    self.ready[name].append(
                        self._move(name, MessageKind.ACTIVATION, settled.messages[name], [at])
                    )

    def _move(
        self, value: str, what: MessageKind, messages: tuple[Message, ...], deps: Iterable[int]
    ) -> int:
        pattern = recognise_collective(messages)
        return self.write.emit(Move(value, what, self.key, messages, pattern, sorted_deps(deps)))

    def _merge(self, op: Op, phase: str, deps: Sequence[int]) -> int:
        settled, key = self.settled, self.key
        placed, messages = settled.merges[op.name], settled.partial_messages[op.name]
        devices = tuple(sorted({d for c in placed for d in c.devices}))
        value = op.outputs[0]
        if phase == "F":
            after = list(deps)
            if messages:
                after.append(self._move(value, MessageKind.PARTIAL, messages, deps))
            return self.write.emit(Merge(op.name, "F", key, placed, devices, tuple(after)))
        at = self.write.emit(Merge(op.name, "B", key, placed, devices, sorted_deps(deps)))
        if messages and op.name not in settled.replicated_loss_ops:
            back = settled.partial_gradient_messages[op.name]
            return self._move(value, MessageKind.PARTIAL_GRADIENT, back, [at])
        return at

    # -- backward ----------------------------------------------------------------------------------

    def backward(self, ops: Sequence[Op], after: Iterable[int] = (), *, weights: bool) -> None:
        """Gradients leave as soon as they are complete: the last consumer's backward sends them on.

        `after`: what brings parameters that the forward has dropped.
        With `weights`, gradients of parameters that the plan keeps apart follow what others wait for;
        else `weights` gives them when the schedule says so.
        """
        self.after = list(after)
        for op in reversed(ops):
            if has_backward(op, self.settled.active):
                sent = self._backward(op)
                if sent and weights:  # others wait for these; gradients of parameters can wait
                    self.weights()
        if weights:
            self.weights()

    def _backward(self, op: Op) -> bool:
        """Whether something was sent."""
        settled = self.settled
        if op.name in settled.recompute_blocks and op.name not in self.again:
            self._recompute(settled.recompute_blocks[op.name])
        deps = [self.again.get(op.name, self.ran[op.name]), *self.signals]
        deps += [i for name in op.outputs for i in self.given.get(name, [])]
        sent = False
        if op.name in settled.merges:
            deps.append(self._merge(op, "B", deps))
            sent = (
                bool(settled.partial_messages[op.name])
                and op.name not in settled.replicated_loss_ops
            )
        deps += self.after
        names = graded_inputs(op, self.settled.active)
        parameters = trained_parameters(self.settled.graph, op, self.settled.active)
        apart = self.settled.plan.split_backward and bool(parameters)
        if len(parameters) < len(names) or not apart:
            at = self.write.emit(
                Run(op.name, "B", self.key, settled.devices[op.name], sorted_deps(deps))
            )
            deps = [*deps, at]
        if apart:
            self.later.append((op, deps))
        for name in names:
            if name not in parameters:
                self.given.setdefault(name, []).append(at)
                self.by_stage.setdefault((name, settled.stage_of[op.name]), []).append(at)
                sent |= self._send_back(op, name)
            elif not apart:
                self.write.complete(name, self.key, at)
        return sent

    def _send_back(self, op: Op, name: str) -> bool:
        """Sends those parts of a gradient to which this operator was the last to contribute."""
        settled = self.settled
        stage, sent = settled.stage_of[op.name], False
        for portion in settled.gradient_portions[name]:
            if stage not in portion.stages:
                continue
            own = [i for s in sorted(portion.stages) for i in self.by_stage.get((name, s), [])]
            if len(own) == settled.contributions(name, portion.stages):
                back = self._move(name, MessageKind.GRADIENT, portion.messages, own)
                self.given[name].append(back)
                sent = True
        return sent

    def _recompute(self, block: Sequence[Op]) -> None:
        """Runs a block forward once more, as far as its backward needs it."""
        wanted: set[str] = set()
        needed = []
        for op in reversed(block):
            if any(o in self.settled.active or o in wanted for o in op.outputs):
                needed.append(op)
                wanted.update(op.inputs)
        for op in reversed(needed):
            deps = [*self.after, *self.signals, self.ran[op.name]]
            deps += [
                self.again[p.name]
                for i in op.inputs
                if (p := self.settled.producer.get(i)) and p.name in self.again
            ]
            devices = self.settled.devices[op.name]
            self.again[op.name] = self.write.emit(
                Run(op.name, "R", self.key, devices, sorted_deps(deps))
            )

    def weights(self, chosen: Callable[[Op], bool] = lambda op: True) -> None:
        """Gradients of the parameters of operators whose activations have theirs."""
        for op, deps in [item for item in self.later if chosen(item[0])]:
            devices = self.settled.devices[op.name]
            deps = [*deps, *self.signals]
            at = self.write.emit(Run(op.name, "W", self.key, devices, sorted_deps(deps)))
            for name in trained_parameters(self.settled.graph, op, self.settled.active):
                self.write.complete(name, self.key, at)
        self.later = [item for item in self.later if not chosen(item[0])]
