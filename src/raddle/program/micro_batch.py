"""The instructions of one micro-batch, stage by stage.

Forward, operator by operator: run its tiles, merge what is partial, send what other devices need.
Backward, in reverse: gradients come back on the same edges and are summed at the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from raddle.graph.gradients import has_backward, inputs_with_gradient, trained_parameters
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


class ProgramWriter(Protocol):
    """What a micro-batch needs of the program that it is part of."""

    def emit(self, instruction: Instruction) -> int: ...

    def waits_of_read(self, name: str, key: Key, op: Op) -> Iterable[int]:
        """What a use of a parameter or a buffer waits for."""

    def add_contribution(self, name: str, key: Key, number: int) -> None:
        """Takes note of a contribution to a parameter's gradient."""


class MicroBatch:
    """One micro-batch on its way."""

    def __init__(self, lowered: LoweredVariant, key: Key, program: ProgramWriter) -> None:
        self.lowered, self.key, self.program = lowered, key, program
        self.ready: dict[str, list[int]] = {}  # value -> the instructions that make it available
        self.forward_runs: dict[str, int] = {}
        self.gradient_sources: dict[
            str, list[int]
        ] = {}  # value -> those that contribute to its gradient
        self.gradient_sources_by_stage: dict[
            tuple[str, int], list[int]
        ] = {}  # the same, by the stage of the operator
        self.delayed_weights: list[
            tuple[Op, list[int]]
        ] = []  # whose parameters wait for their gradients
        self.recomputed: dict[str, int] = {}  # recomputed operators
        self.parameter_pulls: list[int] = []  # what a backward waits for without a gradient of it
        self.signals: list[int] = []  # what brings the signals that the present action waits for

    # -- forward -----------------------------------------------------------------------------------

    def forward(self, ops: Sequence[Op], pulls: Iterable[int] = ()) -> None:
        """Runs operators of a stage; `after`: what brings their parameters where these are divided."""
        lowered, key = self.lowered, self.key
        for op in ops:
            deps = {
                *pulls,
                *self.signals,
                *(i for name in op.inputs for i in self.ready.get(name, [])),
            }
            deps |= {i for name in op.inputs for i in self.program.waits_of_read(name, key, op)}
            number = self.program.emit(
                Run(op.name, "F", key, lowered.devices[op.name], tuple(sorted(deps)))
            )
            self.forward_runs[op.name] = number
            if op.name in lowered.merges:
                number = self._merge(op, "F", [number])
            for name in op.outputs:
                self.ready[name] = [number]
                if lowered.messages[name]:
                    self.ready[name].append(
                        self._move(name, MessageKind.ACTIVATION, lowered.messages[name], [number])
                    )

    def _move(
        self, value: str, kind: MessageKind, messages: tuple[Message, ...], deps: Iterable[int]
    ) -> int:
        pattern = recognise_collective(messages)
        return self.program.emit(Move(value, kind, self.key, messages, pattern, sorted_deps(deps)))

    def _merge(self, op: Op, phase: str, deps: Sequence[int]) -> int:
        lowered, key = self.lowered, self.key
        cells, messages = lowered.merges[op.name], lowered.partial_messages[op.name]
        devices = tuple(sorted({d for c in cells for d in c.devices}))
        value = op.outputs[0]
        if phase == "F":
            after = list(deps)
            if messages:
                after.append(self._move(value, MessageKind.PARTIAL, messages, deps))
            return self.program.emit(Merge(op.name, "F", key, cells, devices, tuple(after)))
        number = self.program.emit(Merge(op.name, "B", key, cells, devices, sorted_deps(deps)))
        if messages and op.name not in lowered.replicated_loss_ops:
            back = lowered.partial_gradient_messages[op.name]
            return self._move(value, MessageKind.PARTIAL_GRADIENT, back, [number])
        return number

    # -- backward ----------------------------------------------------------------------------------

    def backward(self, ops: Sequence[Op], pulls: Iterable[int] = (), *, weights: bool) -> None:
        """Gradients leave as soon as they are complete: the last consumer's backward sends them on.

        `after`: what brings parameters that the forward has dropped.
        With `weights`, gradients of parameters that the plan keeps apart follow what others wait for;
        else `weights` gives them when the schedule says so.
        """
        self.parameter_pulls = list(pulls)
        for op in reversed(ops):
            if has_backward(op, self.lowered.active):
                sent = self._backward(op)
                if sent and weights:  # others wait for these; gradients of parameters can wait
                    self.weight_gradients()
        if weights:
            self.weight_gradients()

    def _backward(self, op: Op) -> bool:
        """Whether something was sent."""
        lowered = self.lowered
        if op.name in lowered.recompute_blocks and op.name not in self.recomputed:
            self._recompute(lowered.recompute_blocks[op.name])
        deps = [self.recomputed.get(op.name, self.forward_runs[op.name]), *self.signals]
        deps += [i for name in op.outputs for i in self.gradient_sources.get(name, [])]
        sent = False
        if op.name in lowered.merges:
            deps.append(self._merge(op, "B", deps))
            sent = (
                bool(lowered.partial_messages[op.name])
                and op.name not in lowered.replicated_loss_ops
            )
        deps += self.parameter_pulls
        names = inputs_with_gradient(op, self.lowered.active)
        parameters = trained_parameters(self.lowered.graph, op, self.lowered.active)
        split = self.lowered.plan.split_backward and bool(parameters)
        if len(parameters) < len(names) or not split:
            number = self.program.emit(
                Run(op.name, "B", self.key, lowered.devices[op.name], sorted_deps(deps))
            )
            deps = [*deps, number]
        if split:
            self.delayed_weights.append((op, deps))
        for name in names:
            if name not in parameters:
                self.gradient_sources.setdefault(name, []).append(number)
                self.gradient_sources_by_stage.setdefault(
                    (name, lowered.stage_of[op.name]), []
                ).append(number)
                sent |= self._send_back(op, name)
            elif not split:
                self.program.add_contribution(name, self.key, number)
        return sent

    def _send_back(self, op: Op, name: str) -> bool:
        """Sends those parts of a gradient to which this operator was the last to contribute."""
        lowered = self.lowered
        stage, sent = lowered.stage_of[op.name], False
        for portion in lowered.gradient_portions[name]:
            if stage not in portion.stages:
                continue
            sources = [
                i
                for s in sorted(portion.stages)
                for i in self.gradient_sources_by_stage.get((name, s), [])
            ]
            if len(sources) == lowered.contributions(name, portion.stages):
                back = self._move(name, MessageKind.GRADIENT, portion.messages, sources)
                self.gradient_sources[name].append(back)
                sent = True
        return sent

    def _recompute(self, block: Sequence[Op]) -> None:
        """Runs a block forward once more, as far as its backward needs it."""
        wanted: set[str] = set()
        needed = []
        for op in reversed(block):
            if any(o in self.lowered.active or o in wanted for o in op.outputs):
                needed.append(op)
                wanted.update(op.inputs)
        for op in reversed(needed):
            deps = [*self.parameter_pulls, *self.signals, self.forward_runs[op.name]]
            deps += [
                self.recomputed[p.name]
                for i in op.inputs
                if (p := self.lowered.producer.get(i)) and p.name in self.recomputed
            ]
            devices = self.lowered.devices[op.name]
            self.recomputed[op.name] = self.program.emit(
                Run(op.name, "R", self.key, devices, sorted_deps(deps))
            )

    def weight_gradients(self, chosen: Callable[[Op], bool] = lambda op: True) -> None:
        """Gradients of the parameters of operators whose activations have theirs."""
        for op, deps in [item for item in self.delayed_weights if chosen(item[0])]:
            devices = self.lowered.devices[op.name]
            deps = [*deps, *self.signals]
            number = self.program.emit(Run(op.name, "W", self.key, devices, sorted_deps(deps)))
            for name in trained_parameters(self.lowered.graph, op, self.lowered.active):
                self.program.add_contribution(name, self.key, number)
        self.delayed_weights = [item for item in self.delayed_weights if not chosen(item[0])]
