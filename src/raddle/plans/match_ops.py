"""Matches the operators of two graphs of one module, such as its graphs for training and for evaluation.

The graphs differ: evaluation has no dropout, for example. adapt.py gives an operator of one graph the tiles
of its match in the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from raddle.graph.graph import Graph, Op

WEIGHTS = ("parameter", "frozen")  # roles of values: trained and frozen parameters


def match_ops(graph: Graph, other: Graph) -> dict[str, Op]:
    """Returns, by operator of `other`, the operator of `graph` that does the same, if there is one.

    Names cannot be compared: their numbers (relu_1) differ if an operator is missing. Operators that read
    the same parameters are matched first, then those with the same buffers, then those of the same module.
    """
    matches: dict[str, Op] = {}
    used: set[str] = set()
    dropout_inputs = _dropout_inputs(graph), _dropout_inputs(other)
    # Value of `other` -> the same value of `graph`. Inputs, parameters and buffers have the same names;
    # results of operators (role "op") are added as their operators are matched.
    same_value = {name: name for name, value in other.values.items() if value.role != "op"}
    # key(graph, op): equal for operators that may match; None: the operator is not matched by this key
    for key in (_by_weights, _by_buffers, _by_module):
        pools: dict[Hashable, list[Op]] = {}  # by key, operators of `graph` not matched yet
        for op in graph.ops:
            if op.name not in used and (k := key(graph, op)):
                pools.setdefault(k, []).append(op)
        for op in other.ops:
            k = key(other, op)
            if op.name in matches or not k or not pools.get(k):
                continue
            match = _best_match(op, pools[k], same_value, *dropout_inputs)
            pools[k].remove(match)
            used.add(match.name)
            matches[op.name] = match
            same_value.update(zip(op.outputs, match.outputs, strict=False))
    return matches


def _signature(op: Op) -> Hashable:
    """Returns a key that operators have in common if they may do the same."""
    # `label` is the ATen function or the kind. The letters of dimensions are left out: with one sample, the
    # letter `n` may be missing.
    return op.kind, op.label, tuple(dim.unsplittable for dim in op.space.dims)


def inputs_with_role(graph: Graph, op: Op, roles: Sequence[str]) -> list[str]:
    """Returns the names of the inputs of an operator that have one of these roles."""
    return [i for i in op.inputs if graph.values[i].role in roles]


def _by_weights(graph: Graph, op: Op) -> Hashable:
    names = inputs_with_role(graph, op, WEIGHTS)
    return (_signature(op), *names) if names else None


def _by_buffers(graph: Graph, op: Op) -> Hashable:
    names = inputs_with_role(graph, op, ["buffer"])
    return (_signature(op), *names) if names else None


def _by_module(graph: Graph, op: Op) -> Hashable:
    return _signature(op), op.module


def _dropout_inputs(graph: Graph) -> dict[str, str]:
    """Returns a map from the result of each dropout to its input, which evaluation reads instead."""
    inputs: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "dropout":  # its input may be the result of another dropout
            inputs[op.outputs[0]] = inputs.get(op.inputs[0], op.inputs[0])
    return inputs


def _best_match(
    op: Op,
    pool: Sequence[Op],
    same_value: Mapping[str, str],
    candidate_dropout_inputs: Mapping[str, str],
    dropout_inputs: Mapping[str, str],
) -> Op:
    """Returns the candidate in `pool` with the most inputs in common with `op`; the first of equal ones.

    same_value: value of the operator's graph -> the same value of the candidates' graph. The last two
    arguments are the results of `_dropout_inputs` for both graphs.
    """
    operands = [same_value.get(dropout_inputs.get(i, i)) for i in op.inputs]
    # The score of a candidate: inputs in common, same notation, dimensions of equal size, same composite.
    best, best_score = pool[0], (-1, False, 0, False)
    for candidate in pool:
        inputs = [candidate_dropout_inputs.get(i, i) for i in candidate.inputs]
        shared = sum(a == b for a, b in zip(operands, inputs, strict=False))
        same_notation = op.notation == candidate.notation
        sizes = sum(a == b for a, b in zip(op.space.dims, candidate.space.dims, strict=True))
        score = shared, same_notation, sizes, op.layer == candidate.layer
        if score > best_score:
            best, best_score = candidate, score
        if same_notation and shared == len(operands):
            break
    return best
