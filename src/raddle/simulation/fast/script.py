"""The order of a graph's instructions in any program of one step (program/lower.py), as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from raddle.graph.gradients import (
    active_values,
    gives_gradient,
    graded_inputs,
    has_backward,
    trained_parameters,
)
from raddle.graph.graph import Graph, Op
from raddle.simulation.fast.kernel import PARAMETER, PARAMETER_LAST, VALUE, VALUE_LAST, Script


@dataclass(frozen=True)
class Outline:
    """What does not depend on a plan: numbers of operators, values and parameters, and who reads what."""

    graph: Graph
    active: frozenset[str]
    number: dict[str, int]  # of operators
    value: dict[str, int]  # of values that operators make
    made_by: list[tuple[int, int]]  # by value: operator and output
    readers: list[list[tuple[int, int, bool]]]  # by value: operator, operand, whether graded
    parameter: dict[str, int]  # in the order of the first contributions to their gradients
    users: list[list[tuple[Op, int]]]  # by parameter: operators and operands, in order
    script: Script


def outline(graph: Graph) -> Outline:
    active = active_values(graph)
    number = {op.name: i for i, op in enumerate(graph.ops)}
    value: dict[str, int] = {}
    made_by: list[tuple[int, int]] = []
    for i, op in enumerate(graph.ops):
        for k, name in enumerate(op.outputs):
            value[name] = len(made_by)
            made_by.append((i, k))
    backward = [op for op in reversed(graph.ops) if has_backward(op, active)]
    parameter: dict[str, int] = {}
    for op in backward:
        for name in trained_parameters(graph, op, active):
            parameter.setdefault(name, len(parameter))
    for v in graph.parameters:  # without a gradient: never updated, and in no program
        parameter.setdefault(v.name, len(parameter))
    users: list[list[tuple[Op, int]]] = [[] for _ in parameter]
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            if name in parameter:
                users[parameter[name]].append((op, operand))
    return Outline(
        graph, active, number, value, made_by, _readers(graph, active, value, number), parameter,
        users, _script(graph, active, value, backward, parameter, number),
    )  # fmt: skip


def _readers(
    graph: Graph, active: frozenset[str], value: dict[str, int], number: dict[str, int]
) -> list[list[tuple[int, int, bool]]]:
    """Of a value, and of the buffers that hold it in the next step."""
    consumers: dict[str, list[tuple[Op, int]]] = {}
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            consumers.setdefault(name, []).append((op, operand))
    found: list[list[tuple[int, int, bool]]] = []
    for name in value:
        own = list(consumers.get(name, []))
        for buffer, new in graph.updates.items():
            if new == name:
                own += consumers.get(buffer, [])
        found.append(
            [(number[op.name], operand, gives_gradient(op, name, active)) for op, operand in own]
        )
    return found


def _script(
    graph: Graph, active: frozenset[str], value: dict[str, int], backward: Sequence[Op],
    parameter: dict[str, int], number: dict[str, int],
) -> Script:  # fmt: skip
    uses: dict[str, int] = {}
    for op in backward:
        for name in graded_inputs(op, active):
            uses[name] = uses.get(name, 0) + 1
    events: list[list[int]] = [[] for _ in graph.ops]
    kinds: list[list[int]] = [[] for _ in graph.ops]
    for op in backward:
        for name in graded_inputs(op, active):
            uses[name] -= 1
            done, at = uses[name] == 0, number[op.name]
            if name in parameter:
                events[at].append(parameter[name])
                kinds[at].append(PARAMETER_LAST if done else PARAMETER)
            else:
                events[at].append(value[name])
                kinds[at].append(VALUE_LAST if done else VALUE)
    read = [[value[n] for n in dict.fromkeys(op.inputs) if n in value] for op in graph.ops]
    made = [[value[n] for n in op.outputs] for op in graph.ops]
    graded = [[value[n] for n in op.outputs if n in active] for op in graph.ops]
    return Script(
        *_packed(read), *_packed(made), np.array([number[op.name] for op in backward], np.int64),
        *_packed(graded), *_packed(events), _packed(kinds)[1],
    )  # fmt: skip


def _packed(lists: Iterable[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    rows = list(lists)
    at = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return at, np.array([x for row in rows for x in row], np.int64)
