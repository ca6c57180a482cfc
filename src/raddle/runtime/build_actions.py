"""Builds the actions of one rank from a program.

A program is one list of instructions for all devices; it names boxes of values and dependencies. The
result is the list of this device's actions (actions.py): boxes have become numbered slots, and
dependencies have become the order of the list. The classes in builders/ make the actions; this file calls
them, instruction by instruction. Instructions (program/program.py): Run computes an operator, Merge
combines partial results, Move sends messages, Reduce sums gradients, Gather gathers sharded parameters,
Update updates a parameter. An instruction is called i in this file.

Example: the actions of rank 1 for a small model with data parallelism on 2 devices, where each rank has a
part of the loss.

    Feed, Feed                      the input and the target, samples 4 to 7 of 8
    Forward                         the whole model and this rank's part of the loss: one segment
    Send, Receive, AwaitMessage     the parts of the loss go to the other rank
    Forward, RecordLoss             the merge of the parts
    Backward, Backward              of the merge, of the segment
    StartAllReduce                  all gradients in one bucket
    UpdateParameters
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from raddle.graph.graph import Op
from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import (
    Gather,
    Instruction,
    Key,
    Merge,
    Move,
    Program,
    Reduce,
    Run,
    Update,
)
from raddle.runtime.actions import (
    Action,
    Backward,
    Forward,
    RankActions,
    RecordLoss,
    RecordMetric,
    UpdateParameters,
)
from raddle.runtime.builders.buckets import BucketBuilder
from raddle.runtime.builders.buffers import BufferUpdateBuilder
from raddle.runtime.builders.calls import CallBuilder
from raddle.runtime.builders.codes import ShareCode
from raddle.runtime.builders.messages import MessageBuilder
from raddle.runtime.builders.persistent import add_persistent_slots
from raddle.runtime.builders.slices import SliceBuilder
from raddle.runtime.builders.slot_lifetimes import mark_dead_slots, mark_releases
from raddle.runtime.builders.slot_table import BoxSlots, SlotTable, read_hulls
from raddle.runtime.builders.versions import VersionBuilder, mark_stashed_versions


def build_actions(
    program: Program, device: int, place: torch.device, *, share: ShareCode | None = None
) -> RankActions:
    """Returns the actions of one device for the first step or, where steps overlap, for all steps.

    device: index into cluster.devices; place: the torch device that it computes on; share: takes the code
    of a generated function and returns it with the function of an equal earlier code, if there is one, so
    that torch.compile compiles the function once (None: no compilation).
    """
    overlap = is_asynchronous(program.plan)  # whether steps overlap
    builder = _ActionBuilder(program, device, place, share=share)
    tag = 0  # of the next transfer; every rank counts the transfers of all ranks, so tags agree
    for number, i in builder.instructions:
        count = len(i.messages) if isinstance(i, Move) else int(isinstance(i, Reduce | Gather))
        builder.add(number, i, range(tag, tag + count))
        tag += count
    builder.await_remaining()
    actions, slot_table, slices, buckets = (
        builder.actions,
        builder.slot_table,
        builder.slices,
        builder.buckets,
    )
    if program.slices:  # parameters are synchronised in slices: the update ends the step
        actions.append(UpdateParameters(builder.instructions[-1][1].key))
    if overlap:
        mark_stashed_versions(actions)
    outputs = _outputs(program, slot_table)
    persistent = {s.slot for s in slot_table.sources if s.role not in ("input", "seed")}
    mark_dead_slots(
        actions, persistent | {slot for box_slots in outputs.values() for _, slot in box_slots}
    )
    if program.gathers_before_use:
        mark_releases(actions, [parameter.slot for parameter in builder.persistent.gathered])
    return RankActions(
        device, actions, len(slot_table.shapes), slot_table.shapes, slot_table.sources,
        builder.persistent.updated_slots, buckets.buckets, outputs, builder.buffers.current_boxes,
        slices.all_slices(), slices.all_bundles(), buckets.shards.blocks,
        builder.persistent.shard_views, builder.persistent.gathered, slices.bundle_order,
        builder.persistent.dtypes,
    )  # fmt: skip


class _ActionBuilder:
    """Collects the actions of one device: `add` takes the instructions one by one."""

    def __init__(
        self, program: Program, device: int, place: torch.device, *, share: ShareCode | None
    ) -> None:
        self.program, self.device = program, device
        overlap = is_asynchronous(program.plan)
        self.instructions = [
            (n, i) for n, i in enumerate(program.instructions) if overlap or not i.key.step
        ]
        # read_hulls: input, parameter or constant -> the bounding box of all that the device reads of it
        self.slot_table = SlotTable(
            program.graph, [read_hulls(v, device) for v in program.variants]
        )
        self.persistent = add_persistent_slots(program, device, self.slot_table)
        built_instructions = [i for _, i in self.instructions]
        self.calls = CallBuilder(
            program, device, place, self.slot_table, built_instructions, share=share
        )
        self.messages = MessageBuilder(program, device, self.slot_table)
        self.buffers = BufferUpdateBuilder(program, device, self.slot_table)
        self.buckets = BucketBuilder(program, device, self.slot_table)
        self.slices = SliceBuilder(program, device, self.slot_table)
        self.versions = VersionBuilder(program, device, built_instructions) if overlap else None
        self.actions: list[Action] = []

    def add(self, number: int, i: Instruction, tags: Sequence[int]) -> None:
        """Adds the actions of an instruction. number: index in the program; tags: one for each transfer."""
        if self.slices.handles(i):  # parameters are synchronised in slices, and i is a part of that
            self.actions += self.slices.build(i)
        elif isinstance(i, Update):
            self._update(i)
        elif self.device not in i.devices:
            return
        elif isinstance(i, Run):
            self._run(i)
        elif isinstance(i, Merge):
            self._merge(i)
        elif isinstance(i, Move):
            self.actions += self.messages.build_transfers(number, i, tags)
        else:  # a Reduce or Gather, which has one tag
            self.actions += self.buckets.build(i, tags[0])

    def await_remaining(self) -> None:
        """Waits, at the end of the step, for all messages that no instruction waited for."""
        self._await_messages(self.messages.not_awaited())

    def _await_messages(self, deps: Iterable[int]) -> None:
        """Waits for the messages of these instructions, unless an earlier action did.

        Then updates the module buffers whose new values have arrived.
        """
        for d in deps:
            awaits = self.messages.build_awaits(d)
            self.actions += awaits
            if awaits and awaits[0].receive.delivery.completes_values:
                first = awaits[0].receive
                self.actions += self.buffers.build([first.value], first.key)

    def _run(self, run: Run) -> None:
        """Adds the call of a whole segment at its first Run; later Runs of the segment add nothing.

        A Run has a phase: "F" forward, "R" the forward again (recomputation), "B" or "W" backward.
        """
        deps = self.calls.dependencies_at_first(run)
        if deps is None:
            return
        self._await_messages(sorted(deps))
        number = self.calls.segment_of[run.key.variant][run.op]
        call = self.calls.segment(number, run.key)
        if run.phase == "R":
            self.actions.append(Forward(call, recomputation=True))
        elif run.phase != "F":
            self.actions.append(Backward(call, run.phase))
        else:
            ops = self.calls.segments[run.key.variant][number]
            versions = self.versions.versions_for(call, ops) if self.versions is not None else ()
            self.actions += [*self.calls.feeds(call), Forward(call, versions=versions)]
            # Results of operators in `merges` are partial; they are complete only after the merge.
            merges = self.program.variant(run.key).merges
            self._after_forward([op for op in ops if op.name not in merges], run.key)

    def _merge(self, merge: Merge) -> None:
        """Adds the call of a merge, forward or backward."""
        self._await_messages(merge.deps)
        call = self.calls.merge(merge)
        if merge.phase == "B":
            self.actions.append(Backward(call))
            return
        self.actions += [*self.calls.feeds(call), Forward(call)]
        self._after_forward([self.program.variant(merge.key).ops[merge.op]], merge.key)

    def _after_forward(self, ops: Sequence[Op], key: Key) -> None:
        """Adds what follows a forward of these operators: buffer updates, records of loss and metrics."""
        computed = {name for op in ops for name in op.outputs}
        self.actions += self.buffers.build(computed, key)
        loss = self.program.graph.loss
        if loss in computed:
            ((_, slot),) = self.slot_table.computed[key, loss]
            variant = self.program.variant(key)
            reports = self.device == variant.loss_devices[0]
            # Replicated loss: every device computes it and starts the backward (replicated_loss.py).
            starts_backward = reports or bool(variant.replicated_loss_ops)
            self.actions.append(RecordLoss(slot, starts_backward, reports, key))
        for metric, value in self.program.graph.metrics.items():
            if value in computed:
                ((_, slot),) = self.slot_table.computed[key, value]
                reports = self.device == self.program.variant(key).devices_of(value)[0]
                self.actions.append(RecordMetric(metric, slot, reports, key))

    def _update(self, update: Update) -> None:
        """Adds the update of a parameter.

        Usually one action updates all parameters; where steps overlap, each has an action of its own.
        """
        if self.versions is None:
            if not any(isinstance(action, UpdateParameters) for action in self.actions):
                # One optimizer step updates all parameters, after all gradients are complete. Ranks
                # without parameters have it too: gradient clipping is a collective operation.
                updates = (u for _, u in self.instructions if isinstance(u, Update))
                self._await_messages(d for u in updates for d in u.deps)
                self.actions.append(UpdateParameters(update.key))
        elif self.device in update.devices:
            box_slots = self.slot_table.persistent[update.parameter]
            slots = tuple(slot for _, slot in box_slots if slot in self.persistent.updated_slots)
            last_action = self.actions[-1] if self.actions else None
            # Consecutive updates of one step become one action.
            if isinstance(last_action, UpdateParameters) and last_action.key == update.key:
                last_action.slots += slots
            else:
                self.actions.append(UpdateParameters(update.key, slots))


def _outputs(program: Program, slot_table: SlotTable) -> dict[str, BoxSlots]:
    """Returns output name -> its boxes on this device in the last micro-batch, with their slots."""
    return {
        name: box_slots
        for name in program.returned_outputs
        for (key, tensor_id), box_slots in slot_table.computed.items()
        if tensor_id == name and key.micro_batch == program.plan.microbatches - 1
    }
