"""Numbers the operators, values and parameters of a graph, once for all plans.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

The tape is the list of all instructions that a step of any plan may have (tape.py). A block is a set of
operators whose parameters are gathered together with ZeRO (program/parameter_blocks.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from raddle.graph.gradients import (
    active_values,
    contributes_gradient,
    gradient_contributors,
    has_backward,
    trained_parameters,
)
from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan
from raddle.program.parameter_blocks import block_of_parameters
from raddle.simulation.fast.arrays import Tape
from raddle.simulation.fast.tape import record_tape


@dataclass(frozen=True)
class GraphIndex:
    """A graph with numbered operators, values and parameters; only outputs of operators count as values."""

    graph: Graph
    active: frozenset[str]  # values through which gradients flow
    op_number: dict[str, int]  # by name
    value_number: dict[str, int]  # by name
    producer: list[tuple[int, int]]  # by value: operator and number of the output
    # By value: its readers as (operator, number of the operand, whether a gradient comes back).
    readers: list[list[tuple[int, int, bool]]]
    parameter_number: dict[str, int]  # by name; in the order in which backward reaches them
    # By parameter: the operators that read it, as (operator, number of the operand).
    users: list[list[tuple[Op, int]]]
    trained: list[str]  # parameters with a gradient, in the order in which slices are numbered
    tape: Tape
    # ZeRO-3: the parameters that each gather brings, in the order of Slots.gathers.
    gathers: list[list[str]]
    # With shards: by parameter with a gradient, the number of its block.
    block_of: dict[str, int]


def index_graph(graph: Graph, plan: Plan) -> GraphIndex:
    """Numbers a graph and records its tape; of the plan, only sync kind and bucket size matter."""
    active = active_values(graph)
    op_number = {op.name: i for i, op in enumerate(graph.ops)}
    value_number: dict[str, int] = {}
    producer: list[tuple[int, int]] = []
    for i, op in enumerate(graph.ops):
        for k, name in enumerate(op.outputs):
            value_number[name] = len(producer)
            producer.append((i, k))
    backward = [op for op in reversed(graph.ops) if has_backward(op, active)]
    parameter_number: dict[str, int] = {}
    for op in backward:
        for name in trained_parameters(graph, op, active):
            parameter_number.setdefault(name, len(parameter_number))
    for v in graph.parameters:  # parameters without a gradient, which are never updated, come last
        parameter_number.setdefault(v.name, len(parameter_number))
    users: list[list[tuple[Op, int]]] = [[] for _ in parameter_number]
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            if name in parameter_number:
                users[parameter_number[name]].append((op, operand))
    trained = [name for name in gradient_contributors(graph, active) if name in parameter_number]
    tape, gathers = record_tape(graph, active, parameter_number, value_number, plan, trained)
    block_of = {}
    if plan.parsed_sync.shards:
        block_of = block_of_parameters([graph.ops], graph, plan, set(trained))
    return GraphIndex(
        graph, active, op_number, value_number, producer, _readers(graph, active, value_number,
        op_number), parameter_number, users, trained, tape, gathers, block_of,
    )  # fmt: skip


def _readers(
    graph: Graph, active: frozenset[str], value_number: dict[str, int], op_number: dict[str, int]
) -> list[list[tuple[int, int, bool]]]:
    """Returns by value its readers, as (operator, number of the operand, whether a gradient comes back).

    If a buffer, such as a running mean, takes the value after the step, the buffer's readers count too
    (graph.updates: buffer -> the value that it takes).
    """
    consumers: dict[str, list[tuple[Op, int]]] = {}
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            consumers.setdefault(name, []).append((op, operand))
    readers: list[list[tuple[int, int, bool]]] = []
    for name in value_number:
        reads = list(consumers.get(name, []))
        for buffer, new in graph.updates.items():
            if new == name:
                reads += consumers.get(buffer, [])
        readers.append(
            [
                (op_number[op.name], operand, contributes_gradient(op, name, active))
                for op, operand in reads
            ]
        )
    return readers
