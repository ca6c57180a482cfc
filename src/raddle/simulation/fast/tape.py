"""The tape: the instructions of one step in the order in which micro.py writes them, as arrays.

They are written once for a graph, with a merge and messages wherever a plan could have them. A plan then
points to rows (arrays.Slots), and where it has none an instruction is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan
from raddle.program.messages import MessageKind
from raddle.program.micro import Micro
from raddle.program.program import Instruction, Key, Merge, Message, Move, Run
from raddle.program.script import ACTION_ENDS, COMPLETE, STEP_ENDS
from raddle.program.settling import Portion, Settled
from raddle.simulation.fast.arrays import COMPUTE, EVENT, MESSAGES, Array, Tape

SOMETHING = (Message(0, 1, ()),)
Event = tuple[int, int, int]  # what, the parameter, the row that gave its last contribution


def anything(graph: Graph, plan: Plan, active: frozenset[str]) -> Settled:
    """What any plan may have: merges of all that can be partial, messages of all values."""
    values = [name for op in graph.ops for name in op.outputs]
    merged = [op.name for op in graph.ops if op.space.combine]
    return Settled(
        graph,
        plan,
        active,
        devices={op.name: () for op in graph.ops},
        stage_of={op.name: 0 for op in graph.ops},
        closing=frozenset(),
        merges=dict.fromkeys(merged, ()),
        partial_messages=dict.fromkeys(merged, SOMETHING),
        partial_back=dict.fromkeys(merged, SOMETHING),
        messages=dict.fromkeys(values, SOMETHING),
        returned=dict.fromkeys(values, (Portion(frozenset([0]), SOMETHING),)),
    )


class Recorder:
    """Takes down what a micro-batch writes (micro.Writing)."""

    def __init__(self, settled: Settled, parameter: Mapping[str, int]) -> None:
        self.settled, self.parameter = settled, parameter
        self.rows: list[Instruction | Event] = []
        self.pending = {
            name: len(own) for name, own in settled.graders.items() if name in parameter
        }
        self.marks: list[tuple[int, int]] = []  # row and parameter of each contribution

    def emit(self, instruction: Instruction) -> int:
        self.rows.append(instruction)
        return len(self.rows) - 1

    def reads(self, name: str, key: Key, op: Op) -> Iterable[int]:
        return ()

    def complete(self, name: str, key: Key, at: int) -> None:
        self.marks.append((at, self.parameter[name]))
        self.pending[name] -= 1
        if not self.pending[name]:
            self.rows.append((COMPLETE, self.parameter[name], at))


def record(
    graph: Graph, active: frozenset[str], parameter: Mapping[str, int], value: Mapping[str, int]
) -> Tape:
    settled = anything(graph, Plan({}, 1), active)
    recorder = Recorder(settled, parameter)
    micro = Micro(settled, Key(), recorder)
    micro.forward(graph.ops)
    micro.backward(graph.ops, weights=True)
    recorder.rows += [(ACTION_ENDS, -1, -1), (STEP_ENDS, -1, -1)]
    return _arrays(recorder, slot_numbers(graph, value))


def slot_numbers(graph: Graph, value: Mapping[str, int]) -> dict[tuple[object, str], int]:
    """By phase or kind of messages and name, the number of a slot."""
    ops = [op.name for op in graph.ops]
    kinds: list[tuple[object, Sequence[str]]] = [
        ("F", ops), ("B", ops), ("merge", ops), (MessageKind.PARTIAL, ops),
        (MessageKind.PARTIAL_GRADIENT, ops), (MessageKind.ACTIVATION, list(value)),
        (MessageKind.GRADIENT, list(value)),
    ]  # fmt: skip
    every = [(kind, name) for kind, names in kinds for name in names]
    return {own: number for number, own in enumerate(every)}


def _arrays(recorder: Recorder, number: Mapping[tuple[object, str], int]) -> Tape:
    rows, producer = recorder.rows, recorder.settled.producer
    partial = (MessageKind.PARTIAL, MessageKind.PARTIAL_GRADIENT)
    kind, slot, since, arrival = (np.full(len(rows), -1) for _ in range(4))
    waits: list[list[int]] = [[] for _ in rows]
    marks: list[list[tuple[int, int]]] = [[] for _ in rows]
    for at, p in recorder.marks:
        marks[at].append((p, -1))
    events: list[Event] = []
    computed, arrivals, counted = -1, 0, len(recorder.parameter)
    for r, row in enumerate(rows):
        if isinstance(row, tuple):
            kind[r], slot[r] = EVENT, len(events)
            events.append(row)
        elif isinstance(row, Run | Merge):
            kind[r] = COMPUTE
            slot[r] = number["merge" if isinstance(row, Merge) else row.phase, row.op]
            waits[r] = [dep for dep in row.deps if isinstance(rows[dep], Move)]
            computed = r
        elif isinstance(row, Move):
            name = producer[row.value].name if row.what in partial else row.value
            kind[r], slot[r], arrival[r] = MESSAGES, number[row.what, name], arrivals
            arrivals += 1
            if row.deps != (computed,):
                since[r] = counted
                for dep in row.deps:
                    marks[dep].append((counted, int(slot[r])))
                counted += 1
    wait_at, wait = packed(waits)
    mark_at, mark = packed([[m for m, _ in own] for own in marks])
    what, parameters, runs = (np.array(column, np.int64) for column in zip(*events, strict=True))
    graded = np.array([name in recorder.pending for name in recorder.parameter], np.int64)
    return Tape(
        kind, slot, wait_at, slot[wait], arrival[wait], mark_at, mark,
        packed([[s for _, s in own] for own in marks])[1], since, arrival,
        np.zeros(len(rows), np.int64), graded, what, parameters, runs,
    )  # fmt: skip


def packed(lists: Iterable[Sequence[int]]) -> tuple[Array, Array]:
    rows = list(lists)
    at = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return at, np.array([x for row in rows for x in row], np.int64)
