"""Records the tape of a graph: the instructions of one step, in the order of a program, as arrays.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

The tape is recorded once for a graph, with a merge and messages wherever any plan could have them. A plan
then has a slot for each instruction (arrays.Slots); instructions with an empty slot are skipped.

A row of the tape is an instruction or an event. At an event, such as "the gradient of parameter 3 is
complete", the step script (program/step_script.py) may add all-reduces, messages to servers and updates. A
mark records where a row ended, for messages that wait for it (arrays.Tape). A contribution is one
operator's part of a parameter's gradient. A block is operators whose parameters are gathered together
(ZeRO-3, program/parameter_blocks.py). A variant is a graph with tiles (program.Variant); the tape needs
only one, which stands for all plans. An active value is one through which gradients flow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan
from raddle.plans.sync import Sync
from raddle.program.lower_variant import GradientPortion, LoweredVariant
from raddle.program.message_kind import MessageKind
from raddle.program.micro_batch import MicroBatch
from raddle.program.parameter_blocks import cut_blocks, with_prefetch
from raddle.program.program import Gather, Instruction, Key, Merge, Message, Move, Run
from raddle.program.step_script import ACTION_ENDS, COMPLETE, STEP_ENDS
from raddle.simulation.fast.arrays import (
    AFTER_ALL,
    COMPUTE,
    EVENT,
    GATHER,
    MESSAGES,
    Array,
    Tape,
)

PLACEHOLDER = (Message(0, 1, ()),)  # stands for the messages of any plan
Event = tuple[int, int, int]  # kind, parameter, row of the last contribution to its gradient


def variant_for_any_plan(graph: Graph, plan: Plan, active: frozenset[str]) -> LoweredVariant:
    """Returns a lowered graph with everything that any plan may have: all merges, all messages."""
    values = [name for op in graph.ops for name in op.outputs]
    merged = [op.name for op in graph.ops if op.space.combine]
    return LoweredVariant(
        graph,
        plan,
        active,
        devices={op.name: () for op in graph.ops},
        stage_of={op.name: 0 for op in graph.ops},
        replicated_loss_ops=frozenset(),
        merges=dict.fromkeys(merged, ()),
        partial_messages=dict.fromkeys(merged, PLACEHOLDER),
        partial_gradient_messages=dict.fromkeys(merged, PLACEHOLDER),
        messages=dict.fromkeys(values, PLACEHOLDER),
        # A portion is the part of a gradient that some pipeline stages send; here the one stage 0 sends
        # all.
        gradient_portions=dict.fromkeys(values, (GradientPortion(frozenset([0]), PLACEHOLDER),)),
    )


class Recorder:
    """Stores the instructions that a MicroBatch writes while it lowers forward and backward.

    It is a ProgramWriter (program/micro_batch.py): a MicroBatch calls its methods. parameter_number: by
    name. A Key says to which step and micro-batch an instruction belongs: here there is only one of each.
    """

    def __init__(self, variant: LoweredVariant, parameter_number: Mapping[str, int]) -> None:
        self.variant, self.parameter_number = variant, parameter_number
        self.rows: list[Instruction | Event] = []
        # By parameter with a gradient: the contributions that are still to come.
        self.missing_contributions = {
            name: len(contributors)
            for name, contributors in variant.contributors.items()
            if name in parameter_number
        }
        self.marks: list[tuple[int, int]] = []  # row and parameter of each contribution
        self.gathers: dict[int, list[str]] = {}  # by row: the parameters that it gathers (ZeRO-3)

    def emit(self, instruction: Instruction) -> int:
        """Adds an instruction; returns its row."""
        self.rows.append(instruction)
        return len(self.rows) - 1

    def waits_of_read(self, name: str, key: Key, op: Op) -> Iterable[int]:
        """Returns the instructions to wait for before a value is read: none in a tape."""
        return ()

    def gather(self, ops: Sequence[Op], sharded: Collection[str]) -> list[int]:
        """Adds a gather of the sharded parameters that operators of a block read; returns its row."""
        names = [n for n in dict.fromkeys(n for op in ops for n in op.inputs) if n in sharded]
        if not names:
            return []
        row = self.emit(Gather(tuple(names), Key(), (), (), ()))
        self.gathers[row] = names
        return [row]

    def add_contribution(self, name: str, key: Key, at: int, last: int) -> None:
        """Records that row `at` adds to a parameter's gradient; an event follows the last contribution.

        last: the row after which the gradient may be sent; `at`, as nothing is recomputed here.
        """
        self.marks.append((at, self.parameter_number[name]))
        self.missing_contributions[name] -= 1
        if not self.missing_contributions[name]:
            self.rows.append((COMPLETE, self.parameter_number[name], at))


def record_tape(
    graph: Graph, active: frozenset[str], parameter_number: Mapping[str, int],
    value_number: Mapping[str, int], plan: Plan, trained: Sequence[str],
) -> tuple[Tape, list[list[str]]]:  # fmt: skip
    """Records the tape of one step; returns it, and the parameters of each gather in it (ZeRO-3).

    active: the values through which gradients flow. parameter_number, value_number: by name. trained: the
    parameters that have a gradient.
    """
    # A plan without tiles on one device: only sync kind, bucket size and the defaults matter.
    plan = Plan({}, 1, sync=plan.sync, bucket=plan.bucket)
    sync, variant = plan.parsed_sync, variant_for_any_plan(graph, plan, active)
    recorder = Recorder(variant, parameter_number)
    micro_batch = MicroBatch(variant, Key(), recorder)

    def blocks_of(phase: str) -> Iterable[tuple[Sequence[Op], Sequence[int]]]:
        """Returns the operators of a phase in blocks, with the rows of their gathers.

        Without ZeRO-3 there is one block. with_prefetch writes the gather of a block one block ahead.
        """
        if not sync.zero3 or not trained:
            return [(graph.ops, ())]
        blocks = cut_blocks(graph.ops, graph, plan, trained, active, phase)
        return with_prefetch(
            blocks, lambda number: recorder.gather(blocks[number].ops_to_run, trained)
        )

    for ops, gathers in blocks_of("F"):
        micro_batch.forward(ops, gathers)
    for ops, gathers in blocks_of("B"):
        micro_batch.backward(ops, gathers, weights=True)  # with the gradients of parameters
    recorder.rows += [(ACTION_ENDS, -1, -1), (STEP_ENDS, -1, -1)]  # events of no parameter
    tape = _build_tape(recorder, slot_numbers(graph, value_number))
    return tape, list(recorder.gathers.values())


def urgencies(
    graph: Graph, parameter_number: Mapping[str, int], trained: Sequence[str], sync: Sync
) -> Array:
    """Returns by parameter the urgency of its messages; 0: served in order; else the smallest goes first.

    sync.sliced: parameters are sent in slices. sync.by_priority: what the forward needs first goes first.
    """
    urgency = np.zeros(len(parameter_number), np.int64)
    if sync.sliced:
        used = dict.fromkeys(
            name for op in graph.ops for name in op.inputs if name in parameter_number
        )
        for at, name in enumerate(used):
            if name in trained:
                urgency[parameter_number[name]] = 1 + at if sync.by_priority else 1
    return urgency


def slot_numbers(graph: Graph, value_number: Mapping[str, int]) -> dict[tuple[object, str], int]:
    """Returns by (phase or kind of message, name of operator or value) its index into Slots.table."""
    ops = [op.name for op in graph.ops]
    kinds: list[tuple[object, Sequence[str]]] = [
        ("F", ops), ("B", ops), ("merge", ops), (MessageKind.PARTIAL, ops),
        (MessageKind.PARTIAL_GRADIENT, ops), (MessageKind.ACTIVATION, list(value_number)),
        (MessageKind.GRADIENT, list(value_number)),
    ]  # fmt: skip
    keys = [(kind, name) for kind, names in kinds for name in names]
    return {key: number for number, key in enumerate(keys)}


def _build_tape(recorder: Recorder, slot_of: Mapping[tuple[object, str], int]) -> Tape:
    """Turns the recorded instructions into arrays; see arrays.Tape.

    slot_of: see `slot_numbers`. `deps` of an instruction: the rows that it waits for.
    """
    # r: row of the tape, p: parameter. producer: by value, the operator that computes it.
    rows, producer = recorder.rows, recorder.variant.producer
    partial = (MessageKind.PARTIAL, MessageKind.PARTIAL_GRADIENT)
    kind, slot, send_after, arrival = (np.full(len(rows), -1) for _ in range(4))
    send_after[:] = AFTER_ALL
    gather_slots = {r: len(slot_of) + at for at, r in enumerate(recorder.gathers)}
    waits: list[list[int]] = [[] for _ in rows]  # by row: messages and gathers that it waits for
    marks: list[list[tuple[int, int]]] = [[] for _ in rows]  # by row: the marks that it sets
    for at, p in recorder.marks:
        marks[at].append((p, -1))  # (mark, slot that needs it); the first marks are the parameters
    events: list[Event] = []
    # last_compute: the last row so far that computes; arrivals, mark_count: how many there are so far
    last_compute, arrivals, mark_count = -1, 0, len(recorder.parameter_number)
    for r, row in enumerate(rows):
        if isinstance(row, tuple):
            kind[r], slot[r] = EVENT, len(events)
            events.append(row)
        elif isinstance(row, Run | Merge):
            kind[r] = COMPUTE
            slot[r] = slot_of["merge" if isinstance(row, Merge) else row.phase, row.op]
            waits[r] = [dep for dep in row.deps if isinstance(rows[dep], Move | Gather)]
            last_compute = r
        elif isinstance(row, Gather):
            kind[r], slot[r], arrival[r] = GATHER, gather_slots[r], arrivals
            arrivals += 1
        elif isinstance(row, Move):
            kind[r], arrival[r] = MESSAGES, arrivals
            arrivals += 1
            name = producer[row.value].name if row.kind in partial else row.value
            slot[r] = slot_of[row.kind, name]
            # Messages that wait for the last computation need no mark (AFTER_ALL). If they wait for other
            # rows, these rows set a new mark, and the messages wait for the mark.
            if row.deps != (last_compute,):
                send_after[r] = mark_count
                for dep in row.deps:
                    marks[dep].append((mark_count, int(slot[r])))
                mark_count += 1
    wait_at, wait = pack(waits)
    mark_at, mark = pack([[m for m, _ in row_marks] for row_marks in marks])
    event_kinds, parameters, runs = (
        np.array(column, np.int64) for column in zip(*events, strict=True)
    )
    has_gradient = np.array(
        [name in recorder.missing_contributions for name in recorder.parameter_number], np.int64
    )
    columns = (
        kind, slot, wait_at, slot[wait], arrival[wait], mark_at, mark,
        pack([[s for _, s in mark_list] for mark_list in marks])[1], send_after, arrival,
        has_gradient, event_kinds, parameters, runs,
    )  # fmt: skip
    return Tape(*(column.astype(np.int32) for column in columns))  # compact: read for every plan


def pack(lists: Iterable[Sequence[int]]) -> tuple[Array, Array]:
    """Joins lists: the entries of list r are values[at[r]:at[r + 1]]; returns (at, values)."""
    rows = list(lists)
    at = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return at, np.array([x for row in rows for x in row], np.int64)
