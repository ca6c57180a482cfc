"""Works out the merges and messages of a variant, once for all of its micro-batches.

A variant is a graph of one micro-batch size with tiles on certain devices. If the tiles of an operator give
partial results, these are merged. Then messages bring the result to the devices of its consumers. A device
receives exactly what its tiles read and it does not hold, and no element twice. Gradients go back along the
same messages.

A part is the partial result of one tile, which gives the part its number. A cell is a box of the output
that is merged from parts, with the devices that merge it (program.py). A stage is a stage of the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from raddle.errors import InputError
from raddle.graph.box import Box, merge_boxes
from raddle.graph.gradients import contributes_gradient, gradient_contributors
from raddle.graph.graph import Graph, Op
from raddle.plans.pipelining import stage_of
from raddle.plans.plan import Plan
from raddle.plans.regions import operand_regions
from raddle.plans.tiling import Tiling
from raddle.program.merges import (
    is_local_statistics,
    is_partial,
    place_merge,
    refuse_statistics_of_one_value,
)
from raddle.program.program import Cell, Message, Variant
from raddle.program.replicated_loss import replicated_loss_ops
from raddle.program.value_holders import (
    ValueHolders,
    always_local,
    boxes_to_fetch,
    in_sending_order,
    output_holders,
)


def lower_variant(
    graph: Graph, plan: Plan, active: frozenset[str], look: Callable[[], None] = lambda: None
) -> LoweredVariant:
    """Works out merges and messages for all operators.

    active: the values whose gradient is needed. look: is called for every operator, see `lower`.
    """
    lowered = LoweredVariant(
        graph,
        plan,
        active,
        {op.name: tuple(sorted(set(plan.tiles[op.name].devices))) for op in graph.ops},
        stage_of(plan) or {op.name: 0 for op in graph.ops},  # without a pipeline: all in stage 0
        # The last operators, which every device computes itself, so that no gradient of the loss is sent.
        replicated_loss_ops(
            graph, plan, active, lambda op: is_partial(op, plan.tiles[op.name], plan.bn)
        ),
    )
    for op in graph.ops:
        look()
        lowered.add_op(op)
    return lowered


class GradientPortion(NamedTuple):
    """A portion of a value's gradient: messages that are sent back at the same time.

    Pipeline stages run backward at different times, so each group of stages sends its portion on its own.
    """

    stages: frozenset[int]  # they contribute to the portion, which is sent after the last one
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class LoweredVariant:
    """A variant with its merges and messages."""

    graph: Graph
    plan: Plan  # with the tiles of this variant
    active: frozenset[str]  # values whose gradient is needed
    devices: dict[str, tuple[int, ...]]  # by operator, the devices that compute it
    stage_of: dict[str, int]  # by operator
    replicated_loss_ops: frozenset[str]  # merged on every device (replicated_loss.py)
    # By operator with partial results: the cells of its merge, the messages that bring parts to the devices
    # that merge them, and the messages that bring the gradients of the parts back.
    merges: dict[str, tuple[Cell, ...]] = field(default_factory=dict)
    partial_messages: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    partial_gradient_messages: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    # By value: the messages that bring it to its consumers, and those that bring its gradient back.
    messages: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    gradient_portions: dict[str, tuple[GradientPortion, ...]] = field(default_factory=dict)

    @cached_property
    def consumers(self) -> dict[str, list[tuple[Op, int]]]:
        """The operators that read each value, each with the number of the operand."""
        consumers: dict[str, list[tuple[Op, int]]] = {}
        for op in self.graph.ops:
            for i, name in enumerate(op.inputs):
                consumers.setdefault(name, []).append((op, i))
        return consumers

    @cached_property
    def producer(self) -> dict[str, Op]:
        return {o: op for op in self.graph.ops for o in op.outputs}

    @cached_property
    def variant(self) -> Variant:
        return Variant(self.graph, self.plan.tiles, self.merges, self.replicated_loss_ops)

    @cached_property
    def contributors(self) -> dict[str, list[Op]]:
        """The operators that contribute to the gradient of each value, in the order of the graph."""
        return gradient_contributors(self.graph, self.active)

    def ops_of(self, stage: int) -> list[Op]:
        """Returns the operators of a stage, in the order of the graph."""
        return [op for op in self.graph.ops if self.stage_of[op.name] == stage]

    def devices_of(self, stage: int) -> set[int]:
        """Returns all devices that compute or merge something of a stage."""
        ops = self.ops_of(stage)
        cells = (cell for op in ops for cell in self.merges.get(op.name, ()))
        devices = {d for op in ops for d in self.devices[op.name]}
        return devices.union(*(cell.devices for cell in cells))

    @cached_property
    def recompute_blocks(self) -> dict[str, list[Op]]:
        """For each recomputed operator, all operators of its block in its stage: they rerun together.

        The operators of a block share one list.
        """
        blocks: dict[str, list[Op]] = {}
        for names in map(set, self.plan.recompute):
            by_stage: dict[int, list[Op]] = {}
            for op in self.graph.ops:
                if op.name in names:
                    by_stage.setdefault(self.stage_of[op.name], []).append(op)
            blocks.update((op.name, ops) for ops in by_stage.values() for op in ops)
        return blocks

    def contributions(self, name: str, stages: frozenset[int]) -> int:
        """Returns how many operators of these stages contribute to a value's gradient."""
        return sum(self.stage_of[op.name] in stages for op in self.contributors.get(name, ()))

    def add_op(self, op: Op) -> None:
        """Works out where an operator's results are merged, and which messages bring them to consumers."""
        tiling = self.plan.tiles[op.name]
        if self.active:
            refuse_statistics_of_one_value(op, tiling, self.plan.bn)
        if is_partial(op, tiling, self.plan.bn):
            self._add_merge(op, tiling)
        for k, name in enumerate(op.outputs):
            self.messages[name], self.gradient_portions[name] = self._messages_of_value(op, k, name)
            if self.messages[name] and is_local_statistics(op, self.plan.bn):
                target = self.messages[name][0].target
                raise InputError(
                    f"with bn: local, device {target} normalises samples whose statistics '{op.name}' "
                    "takes elsewhere: give both operators the same tiles, or use bn: global."
                )

    def _holders(self, op: Op, output: int) -> ValueHolders:
        """Returns the devices that hold an output (its number) after the operator has run and merged."""
        if op.name in self.merges:
            return ValueHolders([(c.box, c.devices) for c in self.merges[op.name]])
        return output_holders(op.space, self.plan.tiles[op.name], output)

    def _add_merge(self, op: Op, tiling: Tiling) -> None:
        """Works out the merge of an operator, and the messages of its partial results."""
        readers = {
            device
            for output in op.outputs
            for consumer, _ in self.consumers.get(output, [])
            for device in self.devices[consumer.name]
        }
        element_bytes = self.graph.values[op.outputs[0]].dtype.itemsize
        devices = self.plan.devices  # how many the plan has
        cells, messages = place_merge(
            op,
            tiling,
            sorted(readers),
            element_bytes,
            replicated=op.name in self.replicated_loss_ops,
            # Where the plan wants it merged; None: the plan does not say.
            sums=self.plan.sums.get(op.name),
        )
        self.merges[op.name], self.partial_messages[op.name] = (
            cells,
            in_sending_order(messages, devices),
        )
        returned = [Message(m.target, m.source, m.boxes, m.part) for m in messages]
        self.partial_gradient_messages[op.name] = in_sending_order(returned, devices)

    def _messages_of_value(
        self, op: Op, output: int, name: str
    ) -> tuple[tuple[Message, ...], tuple[GradientPortion, ...]]:
        """Returns messages that bring a value to its consumers, and those that bring its gradient back.

        op: its producer. output: which of the outputs of `op` it is. name: its name.
        """
        # By device, the boxes that consumers read: those that contribute to the gradient, and the others.
        gradient_reads: dict[int, list[Box]] = {}
        other_reads: dict[int, list[Box]] = {}
        readers = list(self.consumers.get(name, []))
        for buffer in self.graph.buffers_by_value.get(name, ()):
            # The value is the next content of a buffer: the buffer's readers need it in the next step.
            readers += self.consumers.get(buffer, [])
        stages: dict[int, set[int]] = {}  # by device, the stages that contribute to the gradient
        for consumer, operand in readers:
            contributes = contributes_gradient(consumer, name, self.active)
            if contributes:
                for d in self.devices[consumer.name]:
                    stages.setdefault(d, set()).add(self.stage_of[consumer.name])
            if not self._is_always_local(op, output, consumer, operand):
                reads = gradient_reads if contributes else other_reads
                _add_regions(reads, consumer, operand, self.plan.tiles[consumer.name])
        if not gradient_reads and not other_reads:
            return (), ()
        holders, received = self._holders(op, output), dict[int, list[Box]]()
        messages = self._fetch_messages(holders, gradient_reads, received)
        other_messages = self._fetch_messages(holders, other_reads, received)
        gradient_messages = [Message(m.target, m.source, m.boxes) for m in messages]
        return in_sending_order(
            join_messages(messages + other_messages), self.plan.devices
        ), self._portions(gradient_messages, stages)

    def _portions(
        self, messages: Sequence[Message], stages: dict[int, set[int]]
    ) -> tuple[GradientPortion, ...]:
        """Divides the messages of a gradient: a device sends when the last stage it runs has contributed.

        stages: by device, the stages that contribute there. Devices that share a stage send together.
        """
        groups: list[set[int]] = []
        for m in messages:
            group = set(stages[m.source])
            for overlapping in [g for g in groups if g & group]:
                groups.remove(overlapping)
                group |= overlapping
            groups.append(group)
        return tuple(
            GradientPortion(
                frozenset(stage_group),
                in_sending_order(
                    [m for m in messages if stages[m.source] <= stage_group], self.plan.devices
                ),
            )
            for stage_group in groups
        )

    def _is_always_local(self, op: Op, output: int, consumer: Op, operand: int) -> bool:
        """Returns whether it is certain that the consumer needs no message for this operand."""
        if op.name in self.merges:
            return False
        tiling, target = self.plan.tiles[op.name], self.plan.tiles[consumer.name]
        access = consumer.space.operands[operand]
        return always_local(tiling, op.space, output, target, access)

    def _fetch_messages(
        self, holders: ValueHolders, reads: dict[int, list[Box]], received: dict[int, list[Box]]
    ) -> list[Message]:
        """Returns messages that bring each device the boxes that it needs and does not have.

        reads: by device, the boxes that it reads. received: by device, the boxes that it has received
        before; the new ones are added to it.
        """
        messages = []
        for device in sorted(reads):
            regions = list(dict.fromkeys(reads[device]))
            boxes_by_source = boxes_to_fetch(
                holders, device, regions, received.setdefault(device, [])
            )
            messages += [
                Message(s, device, tuple(boxes)) for s, boxes in sorted(boxes_by_source.items())
            ]
        return messages


def _add_regions(reads: dict[int, list[Box]], op: Op, operand: int, tiling: Tiling) -> None:
    """Adds the regions of an operand that each device reads to `reads`."""
    for device, region in operand_regions(op, operand, tiling):
        if region is not None:
            reads.setdefault(device, []).append(region)


def join_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Joins messages that have the same source, target and part into one."""
    boxes_by_path: dict[tuple[int, int, int], list[Box]] = {}  # by source, target and part
    for m in messages:
        boxes_by_path.setdefault((m.source, m.target, m.part), []).extend(m.boxes)
    return tuple(
        Message(source, target, tuple(merge_boxes(boxes)), part)
        for (source, target, part), boxes in sorted(boxes_by_path.items())
    )
