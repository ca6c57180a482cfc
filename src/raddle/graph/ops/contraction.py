"""Contractions: linear, matmul and related calls, einsum.

linear   y[n.. c] += x[n.. k] * w[c+row0 k] + b[c+row0]      row0: the first row of w that is used, mostly 0
matmul   y[a.. m c] += x[a.. m k] * w[a.. k c]
einsum   the equation of the call, as attributes `inputs` (letters of each operand) and `output`

`n..` and `a..` stand for any number of dimensions.

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph; its
argument `suffix` is the last part of the operator's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raddle.graph.builder import Builder, NotSplittable, aten, infer_meta
from raddle.graph.graph import Value
from raddle.graph.letters import ALPHABET, unique, unused_letter
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.pointwise import broadcast_access, broadcast_letters, pointwise
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


# -- linear: reads the weight from row `row0` on, so that it also is one gate of an LSTM -----------------


def _linear_notation(sig: Signature) -> str:
    leading = " ".join(unique(sig.letters[0][:-1], "ck"))  # n.. in the notation above
    bias = " + b[c+row0]" if len(sig.shapes) > 2 else ""
    return f"y[{leading} c] += x[{leading} k] * w[c+row0 k]{bias}"


def _linear_kernel(tile: OperatorTile) -> Kernel:
    return lambda x, w, b=None: F.linear(x, w, b)


declare("linear", _linear_notation, _linear_kernel, Traits(SavedTensors.FACTORS))


def linear(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    rows: tuple[int, int] | None = None,
    suffix: str | None = None,
) -> Any:
    """Adds a linear operator; rows: the range of rows of the weight and of the bias that it uses."""
    lo, hi = rows or (0, weight.shape[0])
    shape = (*x.shape[:-1], hi - lo)
    attrs = {"row0": lo} if rows else {}
    return b.emit(
        "linear", [x, weight, bias], [(shape, x.dtype)], attrs, integers={"row0": lo}, suffix=suffix
    )


@aten("linear")
def _translate_linear(b: Builder, x: Value, weight: Value, bias: Value | None = None) -> Any:
    if len(weight.shape) != 2:
        raise NotSplittable
    return linear(b, x, weight, bias)


# -- matmul, addmm ---------------------------------------------------------------------


def _matmul_notation(sig: Signature) -> str:
    # m: the letter of x's rows, c: of w's columns (each a list, empty for a vector); a: the leading letters
    x, w = sig.shapes[:2]
    taken = ["k"]
    m = [] if len(x) == 1 else unique(sig.letters[0][-2], taken)
    taken += m
    c = [] if len(w) == 1 else unique(sig.letters[1][-1], taken)
    taken += c
    out = sig.outputs[0]
    batch = out[: len(out) - len(m) - len(c)]
    # for x and w: the shape and the letters of the leading dimensions
    pairs = [(s[:-2], names[:-2]) for s, names in zip((x, w), sig.letters, strict=False)]
    a = unique(broadcast_letters([p[0] for p in pairs], [p[1] for p in pairs], batch), taken)
    left = " ".join([*a, *m, *c])
    notation = (
        f"y[{left}] += x[{_join(broadcast_access(x[:-2], a, batch), *m, 'k')}]"
        f" * w[{_join(broadcast_access(w[:-2], a, batch), 'k', *c)}]"
    )
    if len(sig.shapes) > 2:
        notation += f" + b[{broadcast_access(sig.shapes[2], [*a, *m, *c], out)}]"
    return notation


def _join(*tokens: str) -> str:
    return " ".join(t for t in tokens if t)


def _matmul_kernel(tile: OperatorTile) -> Kernel:
    alpha, beta = tile.attrs.get("alpha", 1), tile.attrs.get("beta", 1)

    def run(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        y = torch.matmul(x, w)
        y = y if alpha == 1 else y * alpha
        if b is None:
            return y
        return y + (b if beta == 1 else b * beta)

    return run


declare("matmul", _matmul_notation, _matmul_kernel, Traits(SavedTensors.FACTORS))


@aten("matmul", "mm", "bmm", "mv", "dot")
def matmul(b: Builder, x: Value, w: Value) -> Any:
    """Adds a matrix product; returns its output value. Both operands may have batch dimensions."""
    result = infer_meta(A.matmul.default, (x, w), {})
    return b.emit("matmul", [x, w], [(result.shape, result.dtype)], suffix="matmul")


@aten("addmm", "baddbmm", "addmv")
def _translate_addmm(
    b: Builder, bias: Value, x: Value, w: Value, *, beta: float = 1, alpha: float = 1
) -> Any:
    result = infer_meta(A.matmul.default, (x, w), {})
    attrs = {"alpha": alpha, "beta": beta}
    operands = [x, w, None if beta == 0 else bias]
    return b.emit("matmul", operands, [(result.shape, result.dtype)], attrs, suffix="addmm")


# -- einsum ----------------------------------------------------------------------------


def _einsum_notation(sig: Signature) -> str:
    inputs, output = sig.attrs["inputs"], sig.attrs["output"]
    names: dict[str, str] = {}  # letters of the equation -> letters of the dimensions
    # spec: the letters of one operand in the equation, symbol: one of them
    for spec, letters in zip(inputs, sig.letters, strict=True):
        for symbol, letter in zip(spec, letters, strict=True):
            if symbol not in names:
                summed = symbol not in output
                preferred = "k" if summed else letter
                taken = names.values()
                names[symbol] = (
                    unused_letter([*taken, *output]) if preferred in taken else preferred
                )
    accesses = [f"x{i}[{' '.join(names[s] for s in spec)}]" for i, spec in enumerate(inputs)]
    left = " ".join(names[s] for s in output)
    assign = "+=" if any(s not in output for spec in inputs for s in spec) else "="
    return f"y[{left}] {assign} {' * '.join(accesses)}"


def _einsum_kernel(tile: OperatorTile) -> Kernel:
    equation = ",".join(tile.attrs["inputs"]) + "->" + tile.attrs["output"]
    return lambda *tensors: torch.einsum(equation, *tensors)


declare("einsum", _einsum_notation, _einsum_kernel, Traits(SavedTensors.FACTORS))


@aten("einsum")
def _translate_einsum(
    b: Builder, equation: str, operands: Sequence[Value], *, path: Any = None
) -> Any:
    inputs, output = _explicit_equation(equation.replace(" ", ""), [len(v.shape) for v in operands])
    if any(len(set(spec)) < len(spec) for spec in inputs):
        raise NotSplittable  # a diagonal
    sizes: dict[str, int] = {}
    for spec, value in zip(inputs, operands, strict=True):
        for symbol, size in zip(spec, value.shape, strict=True):
            if sizes.setdefault(symbol, size) != size:
                raise NotSplittable  # broadcasting inside an equation
    attrs = {"inputs": tuple(inputs), "output": output}
    shape = tuple(sizes[s] for s in output)
    return b.emit("einsum", operands, [(shape, operands[0].dtype)], attrs)


def _explicit_equation(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Returns the inputs and the output of an equation, with letters in place of ellipses.

    rank - len(spec) + 3 is the number of dimensions that "..." (3 characters) stands for.
    """
    inputs_text, arrow, output = equation.partition("->")
    specs = inputs_text.split(",")
    # dots: the letters that stand for "...", as many as the longest one needs
    spare = [s for s in ALPHABET + ALPHABET.upper() if s not in equation]
    longest = max(
        (rank - len(s) + 3 for s, rank in zip(specs, ranks, strict=True) if "..." in s), default=0
    )
    dots = "".join(spare[:longest])
    inputs = []
    for spec, rank in zip(specs, ranks, strict=True):
        missing = rank - len(spec) + 3
        inputs.append(spec.replace("...", dots[longest - missing :] if missing else ""))
    if (
        not arrow
    ):  # the output has the letters that occur once, in alphabetical order (torch.einsum)
        input_letters = inputs_text.replace("...", "").replace(",", "")
        once = (s for s in set(input_letters) if input_letters.count(s) == 1)
        output = dots + "".join(sorted(once))
    return inputs, output.replace("...", dots)


@aten("outer")
def _translate_outer(b: Builder, x: Value, y: Value) -> Any:
    return pointwise(b, A.mul.Tensor, b.call(A.unsqueeze.default, x, 1), y)
