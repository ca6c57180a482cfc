"""What PyTorch keeps of an operator for its backward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raddle.graph.dtypes import carries_gradient
from raddle.graph.gradients import graded_operands, has_backward
from raddle.graph.graph import Graph, Op

NOTHING, INPUTS, OUTPUT = "nothing", "inputs", "output"
FACTORS = "factors"  # an operand is needed for the gradients of the others
INDICES = "indices"  # operands without a gradient: positions, masks

# What the backward of an operator needs, by kind; of elementwise functions by name. All else: its inputs.
KEPT = {
    **dict.fromkeys(("linear", "matmul", "einsum", "mul", "multiply", "div", "divide"), FACTORS),
    **dict.fromkeys(
        ("relu", "sigmoid", "tanh", "exp", "expm1", "sqrt", "rsqrt", "reciprocal", "tan", "special_expit"),
        OUTPUT,
    ),
    **dict.fromkeys(("softmax", "rnn_tanh_cell", "rnn_relu_cell"), OUTPUT),
    **dict.fromkeys(("embedding", "pick", "gather", "index", "where", "masked_fill"), INDICES),
    **dict.fromkeys(("add", "sub", "subtract", "rsub", "neg", "detach", "_to_copy", "counted"), NOTHING),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "sign"), NOTHING),
    **dict.fromkeys(("real", "imag", "conj_physical", "resolve_conj", "resolve_neg"), NOTHING),
    **dict.fromkeys(("reshape", "permute", "slice", "select", "expand", "cat", "pad", "take"), NOTHING),
    **dict.fromkeys(("sum", "triangle", "full", "arange", "running", "interpolate"), NOTHING),
    "dropout": NOTHING,  # but a mask
}  # fmt: skip


class Kept(NamedTuple):
    """What an operator keeps for its backward."""

    inputs: frozenset[str] = frozenset()
    output: bool = False
    extra: int = 0  # bytes for each element of the output: masks, and where a maximum was


def kept(graph: Graph, active: frozenset[str], op: Op) -> Kept:
    """What the backward of an operator needs, if there is one."""
    values = graph.values
    if not has_backward(op, active) or not graded_operands(op, active):
        return Kept()
    rule = KEPT.get(op.label if op.kind == "pointwise" else op.kind, INPUTS)
    if op.kind == "lse" and op.composite in ("softmax", "log_softmax"):
        rule = NOTHING  # its gradient comes from the softmax's output
    chosen: Iterable[str] = ()
    if rule == INPUTS:
        chosen = op.inputs
    elif rule == INDICES:
        chosen = (i for i in op.inputs if not carries_gradient(values[i].dtype))
    elif rule == FACTORS:
        chosen = (
            name for n, name in enumerate(op.inputs)
            if set(graded_operands(op, active)) - {n} and not _added(op, n)
        )  # fmt: skip
    largest = op.kind.startswith("max_pool") or bool(op.attrs.get("largest"))
    extra = 1 if op.kind == "dropout" else 8 if largest else 0
    return Kept(frozenset(chosen), rule == OUTPUT or op.kind == "opaque", extra)


def _added(op: Op, operand: int) -> bool:
    """Whether an operand is only added, as a bias is, and the others do not multiply it."""
    return op.space.operands[operand].once
