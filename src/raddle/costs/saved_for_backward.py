"""Tells which tensors of an operator PyTorch saves for its backward; the memory simulation counts them."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from raddle.graph.dtypes import carries_gradient, cast_dtype
from raddle.graph.gradients import has_backward, operands_with_gradient
from raddle.graph.graph import Graph, Op
from raddle.graph.traits import SavedTensors

# By name of an elementwise function, what its backward needs. Functions that are not listed need their
# inputs. FACTORS means the inputs that the gradient of another input needs. INDICES means all inputs whose
# dtype has no gradient (integers, booleans): here the mask.
SAVED_BY_FUNCTION = {
    **dict.fromkeys(("mul", "multiply", "div", "divide"), SavedTensors.FACTORS),
    **dict.fromkeys(
        ("relu", "sigmoid", "tanh", "exp", "expm1", "sqrt", "rsqrt", "reciprocal", "tan", "special_expit"),
        SavedTensors.OUTPUT,
    ),
    **dict.fromkeys(("where", "masked_fill"), SavedTensors.INDICES),
    **dict.fromkeys(("add", "sub", "subtract", "rsub", "neg", "detach", "_to_copy"), SavedTensors.NOTHING),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "sign"), SavedTensors.NOTHING),
    **dict.fromkeys(("real", "imag", "conj_physical", "resolve_conj", "resolve_neg"), SavedTensors.NOTHING),
}  # fmt: skip


class SavedForBackward(NamedTuple):
    """The tensors that autograd saves when an operator runs forward."""

    inputs: frozenset[str] = frozenset()  # names of the input values that are saved
    output: bool = False  # whether its output is saved
    extra: Fraction = (
        Fraction()
    )  # further bytes per element of the output, as for masks and indices of maxima
    # Names of input values of which a copy is saved, in the dtype to which autocast casts them.
    copies: frozenset[str] = frozenset()


def saved_for_backward(graph: Graph, active: frozenset[str], op: Op) -> SavedForBackward:
    """Returns the tensors saved for the backward of an operator; none if it has no backward.

    active: names of the values that have a gradient (graph/gradients.py).
    """
    values = graph.values
    if not has_backward(op, active) or not operands_with_gradient(op, active):
        return SavedForBackward()
    rule = (
        SAVED_BY_FUNCTION.get(op.label, op.traits.saved_tensors)
        if op.kind == "pointwise"
        else op.traits.saved_tensors
    )
    # "lse" is the log-sum-exp, which a softmax is composed of
    if op.kind == "lse" and op.composite_kind in ("softmax", "log_softmax"):
        rule = SavedTensors.NOTHING  # its gradient comes from the softmax's output
    chosen: Iterable[str] = ()
    if rule in (SavedTensors.INPUTS, SavedTensors.BOTH):
        chosen = op.inputs
    elif rule == SavedTensors.INDICES:
        chosen = (i for i in op.inputs if not carries_gradient(values[i].dtype))
    elif rule == SavedTensors.FACTORS:
        chosen = (
            name for n, name in enumerate(op.inputs)
            if set(operands_with_gradient(op, active)) - {n} and not _is_only_added(op, n)
        )  # fmt: skip
    # an adaptive maximum pool ("largest") saves the index of each maximum, 8 bytes
    extra = 8 if op.attrs.get("largest") else op.traits.extra_saved_bytes
    extra_bytes = extra(op) if callable(extra) else Fraction(extra)
    cast, inputs = graph.casts.get(op.name), frozenset(chosen)
    copies = frozenset(i for i in inputs if cast_dtype(values[i].dtype, cast) != values[i].dtype)
    saves_output = rule in (SavedTensors.OUTPUT, SavedTensors.BOTH)
    return SavedForBackward(inputs - copies, saves_output, extra_bytes, copies)


def _is_only_added(op: Op, operand: int) -> bool:
    """Returns whether an operand is only added, as a bias is: no gradient of another operand needs it."""
    return op.space.operands[operand].added_once
