"""Sums and means over dimensions, and operators along a dimension that must not be split (max, sort, ...).

    sum     y[a] += x[a k]     a box that has a part of k gives a partial sum
    whole   y[a] = x[a K]      such as a maximum: exact gradients at equal values need all of K

Sums of half-precision numbers are float32 until they are complete; another operator then rounds them.

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph; its
argument `suffix` is the last part of the operator's name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from raddle.graph.builder import Builder, NotSplittable, aten, infer_meta
from raddle.graph.graph import Value
from raddle.graph.letters import unique, unused_letter
from raddle.graph.operand_refs import OperandRef, call_with_operands
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.norm import accumulation_dtype, moments
from raddle.graph.ops.pointwise import arguments_by_name, cast, find_overload, full, pointwise
from raddle.graph.overloads import resolve_overload
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


def normalise_dims(x: Value, dim: Any) -> tuple[int, ...]:
    """Returns a `dim` argument as sorted, non-negative dimensions; None or () mean all dimensions."""
    rank = len(x.shape)
    dims = [] if dim is None else [dim] if isinstance(dim, int) else dim
    return tuple(sorted(d % rank for d in dims)) if dims and rank else tuple(range(rank))


def reduced_shape(x: Value, dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """Returns the shape of a reduction over `dims`; with keepdim, a reduced dimension has size 1."""
    return tuple(
        1 if d in dims else size for d, size in enumerate(x.shape) if keepdim or d not in dims
    )


def kept_letters(letters: Sequence[str], dims: Sequence[int], keepdim: bool) -> list[str]:
    """Returns the letters of the result.

    A reduced dimension that is kept (size 1) gets an unused letter.
    """
    kept, taken = [], list(letters)
    for d, letter in enumerate(letters):
        if d not in dims:
            kept.append(letter)
        elif keepdim:
            kept.append(unused_letter(taken))
            taken.append(kept[-1])
    return kept


# -- sum, mean -------------------------------------------------------------------------


def _sum_notation(sig: Signature) -> str:
    dims, keepdim = sig.attrs["dims"], sig.attrs["keepdim"]
    letters = unique(sig.letters[0])
    assign = "+=" if dims else "="
    return f"y[{' '.join(kept_letters(letters, dims, keepdim))}] {assign} x[{' '.join(letters)}]"


def _sum_kernel(tile: OperatorTile) -> Kernel:
    # scale: 1 for a sum, 1 / number of summed elements for a mean
    dims, keepdim, scale = (tile.attrs[k] for k in ("dims", "keepdim", "scale"))
    dtype = tile.op.dtypes[0]
    if not dims:
        return lambda x: x.to(dtype)
    if scale == 1:
        return lambda x: x.sum(dims, keepdim, dtype=dtype)
    if not tile.is_partial:
        return lambda x: x.mean(dims, keepdim, dtype=dtype)
    return lambda x: x.sum(dims, keepdim, dtype=dtype) * scale


declare("sum", _sum_notation, _sum_kernel, Traits(SavedTensors.NOTHING))


def sum_or_mean(
    b: Builder,
    x: Value,
    dims: Sequence[int],
    keepdim: bool,
    *,
    mean: bool = False,
    dtype: Any = None,
) -> Any:
    """Adds the sum or the mean over dimensions."""
    dtype = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    count = math.prod(x.shape[d] for d in dims)
    shape, suffix = reduced_shape(x, dims, keepdim), "mean" if mean else "sum"
    if not count:  # the input has no elements
        return full(b, shape, math.nan if mean else 0, dtype, suffix)
    attrs = {"dims": tuple(dims), "keepdim": keepdim, "scale": 1 / count if mean else 1}
    y = b.emit("sum", [x], [(shape, accumulation_dtype(dtype))], attrs, suffix=suffix)
    return cast(b, y, dtype)


@aten("sum")
def _translate_sum(
    b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return sum_or_mean(b, x, normalise_dims(x, dim), keepdim, dtype=dtype)


@aten("mean")
def _translate_mean(
    b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return sum_or_mean(b, x, normalise_dims(x, dim), keepdim, mean=True, dtype=dtype)


def _variance(b: Builder, x: Value, dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> Any:
    """Adds the variance, in float32 if x has half precision; the arguments are those of torch.var."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = normalise_dims(x, dim)
    # ddof: the variance divides by the number of elements minus ddof
    ddof = correction if correction is not None else 1 if unbiased is None else int(unbiased)
    count = math.prod(x.shape[d] for d in dims)
    if count <= ddof:
        raise NotSplittable  # no degree of freedom is left: torch returns nan
    _, variance = moments(b, x, dims, suffix="moments")
    if keepdim:
        variance = b.call(A.reshape.default, variance, list(reduced_shape(x, dims, True)))
    return pointwise(b, A.mul.Tensor, variance, count / (count - ddof))


@aten("var")
def _translate_var(
    b: Builder, x: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False,
    *, correction: Any = None,
) -> Any:  # fmt: skip
    return cast(b, _variance(b, x, dim, unbiased, keepdim, correction), x.dtype)


@aten("std")
def _translate_std(
    b: Builder, x: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False,
    *, correction: Any = None,
) -> Any:  # fmt: skip
    variance = _variance(b, x, dim, unbiased, keepdim, correction)
    variance = pointwise(b, A.relu.default, variance)  # stops the gradient at zero, as torch does
    return cast(b, pointwise(b, A.sqrt.default, variance), x.dtype)


# -- whole: operators that must not be split along some dimensions ---------------------


def _whole_notation(sig: Signature) -> str:
    # attrs["dims"]: the dimensions that must not be split, which get capital letters
    dims = sig.attrs["dims"]
    letters = unique(sig.letters[0])
    indices = [a.upper() if d in dims else a for d, a in enumerate(letters)]
    outputs, taken = [], list(letters)
    for shape in sig.outputs:
        if len(shape) == len(indices):
            output = []
            for d, size in enumerate(shape):
                if d in dims and size != sig.shapes[0][d]:  # a reduced dimension of size 1, or topk
                    output.append(unused_letter(taken).upper())
                    taken.append(output[-1])
                else:
                    output.append(indices[d])
        else:
            output = [a for d, a in enumerate(indices) if d not in dims]
        outputs.append(" ".join(output))
    left = ", ".join(f"y{i}[{o}]" for i, o in enumerate(outputs))
    return f"{left} = x[{' '.join(indices)}]"


def _whole_kernel(tile: OperatorTile) -> Kernel:
    # args, kwargs: the arguments of the ATen call, with an OperandRef in place of x (builder.py)
    target = resolve_overload(tile.attrs["call"])
    call = call_with_operands(target, tile.attrs["args"], tile.attrs["kwargs"])

    def run(x: Any) -> Any:
        result = call([x])
        return result if isinstance(result, torch.Tensor) else tuple(result)

    return run


declare("whole", _whole_notation, _whole_kernel, Traits(SavedTensors.INPUTS))


def emit_whole(
    b: Builder, target: Any, x: Value, dims: Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    """Adds an ATen call on x that must not be split along `dims`; the other dimensions may be split."""
    result = infer_meta(target, (x, *args), kwargs)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    name = target._schema.name.split("::")[1]
    call = f"{name}.{target._schema.overload_name or 'default'}"
    attrs = {"call": call, "dims": tuple(dims), "args": (OperandRef(0), *args), "kwargs": kwargs}
    shapes = [(o.shape, o.dtype) for o in outputs]
    return b.emit("whole", [x], shapes, attrs, suffix=name)


def _declare_whole(name: str) -> None:
    """Registers an ATen call that must not be split along `dim` or, without `dim`, is never split."""

    @aten(name)
    def translate(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Any:
        target = find_overload(getattr(A, name), (x, *args), kwargs)
        by_name = arguments_by_name(target, (x, *args), kwargs)
        if "other" in by_name:  # max(x, y) is the elementwise maximum(x, y)
            return pointwise(b, getattr(A, f"{name}imum").default, x, by_name["other"])
        dim = by_name.get("dim")
        if name in ("any", "all") and dim in ([], ()):
            raise NotSplittable  # for these calls, unlike all others, () does not mean all dimensions
        return emit_whole(b, target, x, normalise_dims(x, dim), *args, **kwargs)


for _name in [
    "amax", "amin", "max", "min", "any", "all", "prod", "argmax", "argmin", "cumsum", "cumprod",
    "cummax", "cummin", "logcumsumexp", "sort", "argsort",
]:  # fmt: skip
    _declare_whole(_name)


@aten("topk")
def _translate_topk(b: Builder, x: Value, k: int, dim: int = -1, *args: Any) -> Any:
    return emit_whole(b, A.topk.default, x, normalise_dims(x, dim), k, dim, *args)


@aten("linalg_vector_norm")
def _translate_vector_norm(
    b: Builder,
    x: Value,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    dims = normalise_dims(x, dim)
    return emit_whole(
        b, A.linalg_vector_norm.default, x, dims, ord, list(dims), keepdim, dtype=dtype
    )


@aten("norm")
def _translate_norm(
    b: Builder, x: Value, p: Any = 2, dim: Any = None, keepdim: bool = False
) -> Any:
    return _translate_vector_norm(b, x, 2 if p is None else p, dim, keepdim)
