"""Lowers a graph and a plan to a program.

The schedule gives the order of actions: an action is one stage of one micro-batch, forward or backward
(variants.py). Every action is written as instructions (micro_batch.py). The gradient of a parameter is
synchronised as soon as all micro-batches have contributed to it (gradient_sync.py). Parameters are updated
at the end of a step or, where steps overlap, each as soon as its gradient is complete; weight_versions.py
then says which weights every Run instruction uses.

A variant is a graph of one micro-batch size, with its tiles on certain devices; most programs have one
(variants.py). A key names a step, a micro-batch and its variant (program.py). A signal is a message without
data that makes an action wait for another (signals.py). Instructions are referred to by their numbers, that
is, their places in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from raddle.errors import InputError
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph, Op
from raddle.plans.pipelining import is_asynchronous, is_greedy, is_threaded, steps_in_flight
from raddle.plans.plan import Plan
from raddle.plans.schedule import Action
from raddle.plans.validation import validate
from raddle.plans.value_dtypes import in_precision
from raddle.program.gradient_sync import GradientSync
from raddle.program.instruction_writer import InstructionWriter, sorted_deps
from raddle.program.lower_variant import LoweredVariant
from raddle.program.micro_batch import MicroBatch
from raddle.program.parameter_blocks import OpBlock, cut_blocks, with_prefetch
from raddle.program.parameter_layout import ParameterLayout, holders
from raddle.program.program import Gather, Instruction, Key, Program
from raddle.program.signals import SIGNALS, Signals, signal_messages
from raddle.program.threaded_order import reorder
from raddle.program.variants import Variants
from raddle.program.weight_versions import with_versions


def lower(
    graph: Graph, plan: Plan, *, train: bool = True, look: Callable[[], None] = lambda: None
) -> Program:
    """Returns the program of a plan: `plan.steps` steps of `plan.microbatches` micro-batches.

    graph: that of the largest micro-batch. The program's graph has the dtypes of the plan's precision.
    train: False gives a program of forwards only. look: is called for every operator and instruction; a
    search looks at its clock there, and may raise an exception.
    """
    validate(plan, graph)
    graph = in_precision(graph, plan.parsed_precision)
    lowering = _Lowering(graph, plan, active_values(graph) if train else frozenset(), look)
    lowering.write()
    parameters, instructions = lowering.parameters, lowering.writer.instructions
    if is_greedy(plan):
        _refuse_shared_parameters(parameters)
    if is_threaded(plan):  # several steps at once, without stages
        instructions = reorder(instructions, graph, plan, steps_in_flight(plan))
    if lowering.overlap:
        instructions = with_versions(instructions, graph, plan)
    variants = tuple(lowered.variant for lowered in parameters.lowered)
    return Program(
        graph, plan, tuple(instructions), parameters.lowered[0].active, variants, parameters.regions,
        *parameters.cut,
    )  # fmt: skip


def _refuse_shared_parameters(parameters: ParameterLayout) -> None:
    """Raises InputError if a parameter is on several devices: a greedy plan cannot synchronise it.

    In a greedy plan, each device chooses at run time which ready instruction is next (plans/pipelining.py).
    """
    shared_name = next(
        (name for name in parameters.trainable if parameters.synced_regions(name)), None
    )
    if shared_name is not None:
        raise InputError(
            f"'{shared_name}' is on several devices, which would have to update it at the same time: "
            f"use {parameters.plan.schedule.removesuffix(':greedy')}, or a plan without copies."
        )


class _Lowering:
    """Writes a program. Micro-batches write their instructions through it (micro_batch.ProgramWriter)."""

    def __init__(
        self, graph: Graph, plan: Plan, active: frozenset[str], look: Callable[[], None]
    ) -> None:
        # overlap: a step begins before the updates of the last one. active: values that need a gradient.
        self.graph, self.plan, self.overlap = graph, plan, is_asynchronous(plan)
        self.variants = Variants(graph, plan, active, look)
        self.actions = self.variants.actions
        self.writer = InstructionWriter(
            plan.devices, track_latest=plan.parsed_sync.after_backward, look=look
        )
        self.parameters = ParameterLayout(graph, plan, self.variants.lowered)
        self.gradients = GradientSync(self.parameters, self.writer, overlap=self.overlap)
        self.micro_batches: dict[tuple[int, int], MicroBatch] = {}  # by step and number
        # By buffer and the devices that write it, the instructions that wrote it last.
        self.buffer_writers: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        # With ZeRO-3: by variant, stage and phase, the blocks of operators.
        self.blocks: dict[tuple[int, int, str], list[OpBlock]] = {}

    def write(self) -> None:
        """Writes all steps, action by action."""
        for step, actions in enumerate(self.actions):
            schedule = self.variants.schedule
            signals = Signals(schedule) if schedule is not None else None
            for key, action in actions:
                first = len(self.writer.instructions)  # number of the action's first instruction
                before = signals.signals_for(action) if signals is not None else []
                self._write_action(key, action, before)
                if signals is not None:
                    signals.note_end(action, self.writer.instructions, first)
                    self._write_signals(key, action, signals, {a: k for k, a in actions})
                if action.phase != "F":
                    self.gradients.action_ends(key)
            if not self.overlap:
                self.gradients.step_ends(Key(step))

    def _write_action(self, key: Key, action: Action, before: list[int]) -> None:
        """Writes one stage of a micro-batch in one phase. before: the moves with signals for the action."""
        lowered, schedule = self.variants.lowered_for(key), self.variants.schedule
        micro_batch = self.micro_batches.get((key.step, key.micro_batch))
        if micro_batch is None:
            micro_batch = self.micro_batches[key.step, key.micro_batch] = MicroBatch(
                lowered, key, self
            )
        ops = lowered.ops_of(action.stage)
        micro_batch.signals = before
        if action.phase == "F":
            for block, gathers in self._blocks_with_gathers(key, action, ops):
                micro_batch.forward(block, gathers)
            self._note_buffer_writers(micro_batch, lowered, ops)
        elif action.phase == "B":
            split = schedule is not None and schedule.split
            for block, gathers in self._blocks_with_gathers(key, action, ops):
                micro_batch.backward(block, gathers, weights=not split)
        else:
            micro_batch.weight_gradients(lambda op: lowered.stage_of[op.name] == action.stage)

    def _blocks_with_gathers(
        self, key: Key, action: Action, ops: Sequence[Op]
    ) -> Iterable[tuple[Sequence[Op], list[int]]]:
        """Yields operators with the gathers they wait for: in ZeRO-3 block by block, else all at once."""
        if not self.plan.parsed_sync.zero3 or not self.parameters.trainable:
            return [(ops, [])]
        cache_key, lowered = (
            (key.variant, action.stage, action.phase),
            self.variants.lowered_for(key),
        )
        if cache_key not in self.blocks:
            self.blocks[cache_key] = cut_blocks(
                ops, lowered.graph, lowered.plan, set(self.parameters.trainable), lowered.active,
                action.phase,
            )  # fmt: skip
        blocks = self.blocks[cache_key]
        return with_prefetch(blocks, lambda number: self._write_gather(key, blocks[number]))

    def _write_gather(self, key: Key, block: OpBlock) -> list[int]:
        """Writes the gather of the parameters that a block reads; returns its number in a list.

        The list is empty if nothing has to be gathered. Holders send shards after they have updated them.
        """
        parameters, trainable = self.parameters, set(self.parameters.trainable)
        names = tuple(
            name
            for name in dict.fromkeys(name for op in block.ops_to_run for name in op.inputs)
            if name in trainable and parameters.synced_regions(name)
        )
        if not names:
            return []
        regions = tuple(parameters.synced_regions(name) for name in names)
        devices = holders(region for r in regions for region in r)
        updates = [i for name in names for i in self.gradients.last_writers.get(name, ())]
        return [self.writer.emit(Gather(names, key, regions, devices, sorted_deps(updates)))]

    def _write_signals(
        self, key: Key, action: Action, signals: Signals, keys: Mapping[Action, Key]
    ) -> None:
        """Signals the end of an action: from each of its devices to each device of the waiting actions."""
        if action not in signals.waiting:
            return
        ends = signals.ends.instructions[action]
        sources = {d for n in ends for d in self.writer.instructions[n].devices}
        waiting = ((self.variants.lowered_for(keys[a]), a.stage) for a in signals.waiting[action])
        messages = signal_messages(
            sources, {d for lowered, stage in waiting for d in lowered.devices_of(stage)}
        )
        if messages:
            # A signal has no data, but a move has to name a value.
            value = self.graph.loss or self.graph.outputs[0]
            signals.sent[action] = self.writer.emit_move(
                value, SIGNALS[action.phase], key, messages, ends
            )

    def _note_buffer_writers(
        self, micro_batch: MicroBatch, lowered: LoweredVariant, ops: Sequence[Op]
    ) -> None:
        """Remembers who wrote the buffers: the next micro-batch reads them on the same devices."""
        producers = {o: op for op in ops for o in op.outputs}
        for buffer, value in self.graph.updates.items():  # value: the next content of the buffer
            if value in producers:
                devices = lowered.devices[producers[value].name]
                self.buffer_writers[buffer, devices] = micro_batch.ready[value]

    # -- what a micro-batch calls (micro_batch.ProgramWriter) ----------------------------------------

    def emit(self, instruction: Instruction) -> int:
        return self.writer.emit(instruction)

    def waits_of_read(self, name: str, key: Key, op: Op) -> Iterable[int]:
        role = self.graph.values[name].role
        if role == "parameter":
            return () if self.overlap else self.gradients.last_writers.get(name, ())
        if role != "buffer" or name not in self.graph.updates:
            return ()
        lowered = self.variants.lowered_for(key)
        writer = lowered.producer[self.graph.updates[name]]
        return self.buffer_writers.get((name, lowered.devices[writer.name]), ())

    def add_contribution(self, name: str, key: Key, number: int, last: int) -> None:
        self.gradients.contribute(name, key, number, last)
