"""Decides which values of a graph have a gradient, and which operators compute one; no other file does.

A value is *active* if it depends on a parameter and the loss depends on it. An operator has a backward if
one of its outputs is active. Its backward computes a gradient for each of its active operands.
"""

from __future__ import annotations

from collections.abc import Collection

from raddle.graph.graph import Graph, Op

Active = Collection[str]  # names of active values


def active_values(graph: Graph) -> frozenset[str]:
    """Returns the names of the values that depend on a parameter and that the loss depends on."""
    if graph.loss is None:
        return frozenset()
    names = {graph.loss}
    differentiable = graph.differentiable()
    for op in reversed(graph.ops):
        if any(o in names for o in op.outputs) and not op.stops_gradient:
            names.update(i for i in op.inputs if i in differentiable)
    return frozenset(names & differentiable)


def has_backward(op: Op, active: Active) -> bool:
    """Returns whether an operator has a backward."""
    return any(name in active for name in op.outputs)


def operands_with_gradient(op: Op, active: Active) -> tuple[int, ...]:
    """Returns the positions of the operands that have a gradient, among op.inputs."""
    return tuple(i for i, name in enumerate(op.inputs) if name in active)


def inputs_with_gradient(op: Op, active: Active) -> tuple[str, ...]:
    """Returns the names of an operator's inputs that have a gradient, each once, in their order."""
    return tuple(name for name in dict.fromkeys(op.inputs) if name in active)


def contributes_gradient(op: Op, name: str, active: Active) -> bool:
    """Returns whether an operator contributes to the gradient of a value."""
    return name in op.inputs and name in active and has_backward(op, active)


def gradient_contributors(graph: Graph, active: Active) -> dict[str, list[Op]]:
    """Returns, for each value with a gradient, the operators that contribute to it, in execution order."""
    contributors: dict[str, list[Op]] = {}
    for op in graph.ops:
        if has_backward(op, active):
            for name in inputs_with_gradient(op, active):
                contributors.setdefault(name, []).append(op)
    return contributors


def trained_parameters(graph: Graph, op: Op, active: Active) -> tuple[str, ...]:
    """Returns the names of an operator's parameters that have a gradient, each once, in their order."""
    return tuple(
        name for name in inputs_with_gradient(op, active) if graph.values[name].role == "parameter"
    )
