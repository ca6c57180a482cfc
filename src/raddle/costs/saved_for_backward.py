"""What PyTorch keeps of an operator for its backward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raddle.graph.dtypes import carries_gradient
from raddle.graph.gradients import graded_operands, has_backward
from raddle.graph.graph import Graph, Op
from raddle.graph.traits import Keeps

# What elementwise functions need for their backward, by name. All else: their inputs.
SAVED_BY_FUNCTION = {
    **dict.fromkeys(("mul", "multiply", "div", "divide"), Keeps.FACTORS),
    **dict.fromkeys(
        ("relu", "sigmoid", "tanh", "exp", "expm1", "sqrt", "rsqrt", "reciprocal", "tan", "special_expit"),
        Keeps.OUTPUT,
    ),
    **dict.fromkeys(("where", "masked_fill"), Keeps.INDICES),
    **dict.fromkeys(("add", "sub", "subtract", "rsub", "neg", "detach", "_to_copy"), Keeps.NOTHING),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "sign"), Keeps.NOTHING),
    **dict.fromkeys(("real", "imag", "conj_physical", "resolve_conj", "resolve_neg"), Keeps.NOTHING),
}  # fmt: skip


class SavedForBackward(NamedTuple):
    """What an operator keeps for its backward."""

    inputs: frozenset[str] = frozenset()
    output: bool = False
    extra: int = 0  # bytes for each element of the output: masks, and where a maximum was


def saved_for_backward(graph: Graph, active: frozenset[str], op: Op) -> SavedForBackward:
    """What the backward of an operator needs, if there is one."""
    values = graph.values
    if not has_backward(op, active) or not graded_operands(op, active):
        return SavedForBackward()
    rule = (
        SAVED_BY_FUNCTION.get(op.label, op.traits.keeps)
        if op.kind == "pointwise"
        else op.traits.keeps
    )
    if op.kind == "lse" and op.composite_kind in ("softmax", "log_softmax"):
        rule = Keeps.NOTHING  # its gradient comes from the softmax's output
    chosen: Iterable[str] = ()
    if rule in (Keeps.INPUTS, Keeps.BOTH):
        chosen = op.inputs
    elif rule == Keeps.INDICES:
        chosen = (i for i in op.inputs if not carries_gradient(values[i].dtype))
    elif rule == Keeps.FACTORS:
        chosen = (
            name for n, name in enumerate(op.inputs)
            if set(graded_operands(op, active)) - {n} and not _is_only_added(op, n)
        )  # fmt: skip
    extra = 8 if op.attrs.get("largest") else op.traits.extra
    return SavedForBackward(frozenset(chosen), rule in (Keeps.OUTPUT, Keeps.BOTH), extra)


def _is_only_added(op: Op, operand: int) -> bool:
    """Whether an operand is only added, as a bias is, and the others do not multiply it."""
    return op.space.operands[operand].added_once
