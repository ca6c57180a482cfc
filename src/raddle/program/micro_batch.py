"""Writes the instructions of one micro-batch, stage by stage.

Forward, operator by operator: run its tiles, merge partial results, send what other devices read. Backward,
in reverse order: gradients go back along the same messages, and are summed where the value was computed.
Merges and messages were worked out before, once for all micro-batches (lower_variant.py). Instructions are
referred to by their numbers in the program. A value is active if its gradient is needed. A key names a
step, a micro-batch and its variant, that is, how it runs (program.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from raddle.graph.gradients import has_backward, inputs_with_gradient, trained_parameters
from raddle.graph.graph import Op
from raddle.program.collective import recognise_collective
from raddle.program.instruction_writer import sorted_deps
from raddle.program.lower_variant import LoweredVariant
from raddle.program.message_kind import MessageKind, Subject, check_all_kinds_sent
from raddle.program.program import Instruction, Key, Merge, Message, Move, Run

# Importing fails if there is a kind of message between operators that this file does not send.
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
    """The program under construction: the part of it that micro-batches use (lower.py has all of it)."""

    def emit(self, instruction: Instruction) -> int: ...

    def waits_of_read(self, name: str, key: Key, op: Op) -> Iterable[int]:
        """Returns the instructions that a read of a parameter or a buffer waits for."""

    def add_contribution(self, name: str, key: Key, number: int, last: int) -> None:
        """Notes that instruction `number` contributes to the gradient of a parameter.

        last: the instruction after which the gradient may be sent.
        """


@dataclass
class _Block:
    """The backward of a recomputed block so far; ops: None outside of blocks."""

    ops: Sequence[Op] | None
    # Contributions to gradients of parameters: (name, run, devices); then all runs: (run, devices).
    contributions: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)
    runs: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


class MicroBatch:
    """One micro-batch, and the instructions written for it so far."""

    def __init__(self, lowered: LoweredVariant, key: Key, program: ProgramWriter) -> None:
        self.lowered, self.key, self.program = lowered, key, program
        self.ready: dict[str, list[int]] = {}  # by value, the instructions that make it available
        self.forward_runs: dict[str, int] = {}  # by operator, its run in the forward
        # By value, the runs and messages that contribute to its gradient; and the runs alone, by stage.
        self.gradient_sources: dict[str, list[int]] = {}
        self.gradient_sources_by_stage: dict[tuple[str, int], list[int]] = {}
        # Split backward: operators whose gradients of parameters are still to come, with their deps.
        self.delayed_weights: list[tuple[Op, list[int]]] = []
        self.recomputed: dict[str, int] = {}  # by operator that was recomputed, its run
        self.block = _Block(None)  # the recomputed block whose backward is being written
        self.parameter_gathers: list[int] = []  # ZeRO-3: gathers for the present backward
        self.signals: list[int] = []  # moves with the signals that the present action waits for

    # -- forward -----------------------------------------------------------------------------------

    def forward(self, ops: Sequence[Op], gathers: Iterable[int] = ()) -> None:
        """Writes the forward of operators; gathers: with ZeRO-3, the gathers of their parameters."""
        lowered, key = self.lowered, self.key
        for op in ops:
            deps = {
                *gathers,
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
        """Writes a move; returns its number."""
        collective = recognise_collective(messages)
        return self.program.emit(
            Move(value, kind, self.key, messages, collective, sorted_deps(deps))
        )

    def _merge(self, op: Op, phase: str, deps: Sequence[int]) -> int:
        """Writes a merge and the move of its parts: in phase F the move comes first, in B last.

        Returns the number of the last instruction.
        """
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
            returned = lowered.partial_gradient_messages[op.name]
            return self._move(value, MessageKind.PARTIAL_GRADIENT, returned, [number])
        return number

    # -- backward ----------------------------------------------------------------------------------

    def backward(self, ops: Sequence[Op], gathers: Iterable[int] = (), *, weights: bool) -> None:
        """Writes the backward of operators. The last contribution to a gradient is followed by its move.

        gathers: with ZeRO-3, the instructions that gather their parameters again. weights: only matters
        where the plan splits the backward. True: gradients of parameters are written here too, after the
        messages that other devices wait for. False: the schedule has W actions for them
        (`weight_gradients`).
        """
        self.parameter_gathers = list(gathers)
        for op in reversed(ops):
            if has_backward(op, self.lowered.active):
                block = self.lowered.recompute_blocks.get(op.name)
                if block is not self.block.ops:
                    self._end_block()
                    self.block = _Block(block)
                sent = self._backward(op)
                if sent and weights:  # the messages first, as other devices wait for them
                    self.weight_gradients()
        self._end_block()
        if weights:
            self.weight_gradients()

    def _end_block(self) -> None:
        """Synchronises the gradients of a recomputed block, whose backward has ended.

        In the middle of the block, a collective would cut the segment that recomputes it, and the values at
        the cut would be saved by the forward. So it waits for the block's last run on its devices.
        """
        for name, number, devices in self.block.contributions:
            last = max(n for n, d in self.block.runs if set(devices) <= set(d))
            self.program.add_contribution(name, self.key, number, last)
        self.block = _Block(None)

    def _backward(self, op: Op) -> bool:
        """Writes the backward of one operator; returns whether something was sent."""
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
        deps += self.parameter_gathers
        names = inputs_with_gradient(op, self.lowered.active)
        parameters = trained_parameters(self.lowered.graph, op, self.lowered.active)
        split = self.lowered.plan.split_backward and bool(parameters)
        if len(parameters) < len(names) or not split:
            number = self.program.emit(
                Run(op.name, "B", self.key, lowered.devices[op.name], sorted_deps(deps))
            )
            self.block.runs.append((number, lowered.devices[op.name]))
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
            elif not split and self.block.ops is not None:
                self.block.contributions.append((name, number, lowered.devices[op.name]))
            elif not split:
                self.program.add_contribution(name, self.key, number, number)
        return sent

    def _send_back(self, op: Op, name: str) -> bool:
        """Sends the portions of a gradient that are complete now; returns whether there were any.

        A portion is the contribution of a group of stages to the gradient (lower_variant.GradientPortion).
        """
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
                move = self._move(name, MessageKind.GRADIENT, portion.messages, sources)
                self.gradient_sources[name].append(move)
                sent = True
        return sent

    def _recompute(self, block: Sequence[Op]) -> None:
        """Runs the forward of a block again, except for operators that its backward does not need."""
        wanted: set[str] = set()  # inputs of operators that are recomputed
        needed = []
        for op in reversed(block):
            if any(o in self.lowered.active or o in wanted for o in op.outputs):
                needed.append(op)
                wanted.update(op.inputs)
        for op in reversed(needed):
            deps = [*self.parameter_gathers, *self.signals, self.forward_runs[op.name]]
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
        """Writes the delayed gradients of parameters, of those operators that `chosen` accepts."""
        for op, deps in [item for item in self.delayed_weights if chosen(item[0])]:
            devices = self.lowered.devices[op.name]
            deps = [*deps, *self.signals]
            number = self.program.emit(Run(op.name, "W", self.key, devices, sorted_deps(deps)))
            for name in trained_parameters(self.lowered.graph, op, self.lowered.active):
                self.program.add_contribution(name, self.key, number, number)
        self.delayed_weights = [item for item in self.delayed_weights if not chosen(item[0])]
