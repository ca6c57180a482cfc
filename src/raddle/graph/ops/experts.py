"""Products of mixtures of experts, and the numbers of tokens that each expert gets.

    grouped_mm   y[t c] += x[t k], w[e k c], ends[:]     rows ends[e-1] to ends[e]-1 times w[e]
    histc        y[B] += x[k..]                          how many elements are in each bin

A tile with a part of the experts e gives zeros for the tokens of the others: a partial sum.

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Op, Value
from raddle.graph.letters import unique
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


# -- grouped products: operators of torch.library, so that torch.compile does not look inside ---------


@torch.library.custom_op("raddle::grouped_mm", mutates_args=())
def grouped_mm(x: Tensor, w: Tensor, bounds: Tensor) -> Tensor:
    """Returns the rows bounds[e] to bounds[e+1]-1 of x times w[e], and zeros for the other rows."""
    y = x.new_zeros(x.shape[0], w.shape[2])
    for e, (lo, hi) in enumerate(pairwise(bounds.tolist())):
        y[lo:hi] = x[lo:hi] @ w[e]
    return y


@grouped_mm.register_fake
def _(x: Tensor, w: Tensor, bounds: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[2])


@torch.library.custom_op("raddle::grouped_mm_backward", mutates_args=())
def _grouped_mm_backward(
    gradient: Tensor, x: Tensor, w: Tensor, bounds: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of x and w."""
    dx, dw = torch.zeros_like(x), torch.zeros_like(w)
    for e, (lo, hi) in enumerate(pairwise(bounds.tolist())):
        dx[lo:hi] = gradient[lo:hi] @ w[e].t()
        dw[e] = x[lo:hi].t() @ gradient[lo:hi]
    return dx, dw


@_grouped_mm_backward.register_fake
def _(gradient: Tensor, x: Tensor, w: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(w)


def _save_operands(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    dx, dw = _grouped_mm_backward(gradient, *ctx.saved_tensors)
    return dx, dw, None


grouped_mm.register_autograd(_backward, setup_context=_save_operands)


def _grouped_notation(sig: Signature) -> str:
    (t,) = unique(sig.letters[0][0], "eck")
    return f"y[{t} c] += x[{t} k], w[e k c], ends[:]"


def _grouped_flops(op: Op, box: Box, operand: int | None) -> int:
    """Returns the FLOPs of a box if all experts have equally many tokens: each token has one expert."""
    if operand == 2:  # the ends have no gradient
        return 0
    (experts,) = (d.size for d in op.space.dims if d.name == "e")
    return 2 * box.volume // experts


def _grouped_kernel(tile: OperatorTile) -> Kernel:
    # torch has no kernel for float64, in which plans are verified.
    if tile.is_full and tile.attrs["native"] and tile.op.dtypes[0] != torch.float64:
        return lambda x, w, ends: A._grouped_mm.default(x, w, ends)
    row0, rows, (e0, e1) = tile.box.lo[0], tile.shape[0], tile.range("e")

    def run(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        # bounds: of the rows of each expert of the tile, counted from its first row
        bounds = F.pad(ends, (1, 0))[e0 : e1 + 1] - row0
        product: Tensor = grouped_mm(x, w, bounds.clamp(0, rows))
        return product

    return run


declare(
    "grouped_mm",
    _grouped_notation,
    _grouped_kernel,
    Traits(SavedTensors.INPUTS),
    flops=_grouped_flops,
)


def _grouped_product(b: Builder, x: Value, w: Value, ends: Value | None, *, native: bool) -> Any:
    """Adds a grouped product; native: whether torch has a kernel for it."""
    if ends is None or len(x.shape) != 2 or len(w.shape) != 3:
        raise NotSplittable
    shape = (x.shape[0], w.shape[2])
    return b.emit("grouped_mm", [x, w, ends], [(shape, x.dtype)], {"native": native})


@aten("grouped_mm_fallback")
def _translate_grouped_fallback(b: Builder, x: Value, w: Value, offs: Value) -> Any:
    """transformers' operator for types and devices without a kernel in torch."""
    return _grouped_product(b, x, w, offs, native=False)


@aten("_grouped_mm")
def _translate_grouped_mm(
    b: Builder, x: Value, w: Value, offs: Value | None = None, bias: Any = None, dtype: Any = None
) -> Any:
    if bias is not None or dtype not in (None, x.dtype):
        raise NotSplittable
    return _grouped_product(b, x, w, offs, native=True)


# -- histc -----------------------------------------------------------------------------


def _histc_notation(sig: Signature) -> str:
    return f"y[B] += x[{' '.join(unique(sig.letters[0], 'b'))}]"


def _histc_kernel(tile: OperatorTile) -> Kernel:
    bins, low, high = (tile.attrs[name] for name in ("bins", "low", "high"))
    return lambda x: torch.histc(x, bins, low, high)


declare("histc", _histc_notation, _histc_kernel, Traits(SavedTensors.NOTHING))


@aten("histc")
def _translate_histc(b: Builder, x: Value, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    # With equal ends the bins depend on the elements; half precision cannot count far.
    if low == high or x.dtype in (torch.float16, torch.bfloat16):
        raise NotSplittable
    attrs = {"bins": bins, "low": low, "high": high}
    return b.emit("histc", [x], [((bins,), x.dtype)], attrs)
