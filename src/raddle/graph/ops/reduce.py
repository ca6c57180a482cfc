"""Sums and means over dimensions, and operators that need some dimensions whole (max, sort, cumsum,
...).

    sum     y[a] += x[a k]     a box that holds a part of k gives a partial sum
    whole   y[a] = x[a K]      a maximum, say: exact gradients at ties need all of K

Sums of half-precision numbers are float32 until they are complete, and rounded by an operator of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from raddle.graph.builder import (
    Builder,
    NotSplittable,
    OperandRef,
    aten,
    fill_template,
    infer_meta,
    resolve_overload,
)
from raddle.graph.graph import Value
from raddle.graph.letters import unique, unused_letter
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.norm import accumulation_dtype, moments
from raddle.graph.ops.pointwise import arguments, cast, full, overload, pointwise
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


def all_dims(x: Value, dim: Any) -> tuple[int, ...]:
    """A `dim` argument as sorted, non-negative dimensions; None or () are all of them."""
    rank = len(x.shape)
    dims = [] if dim is None else [dim] if isinstance(dim, int) else dim
    return tuple(sorted(d % rank for d in dims)) if dims and rank else tuple(range(rank))


def reduced_shape(x: Value, dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    return tuple(
        1 if d in dims else size for d, size in enumerate(x.shape) if keepdim or d not in dims
    )


def kept_letters(letters: Sequence[str], dims: Sequence[int], keepdim: bool) -> list[str]:
    """Letters of the result: where a reduced dimension is kept, a fresh letter of size 1."""
    kept, taken = [], list(letters)
    for d, letter in enumerate(letters):
        if d not in dims:
            kept.append(letter)
        elif keepdim:
            kept.append(unused_letter(taken))
            taken.append(kept[-1])
    return kept


# -- sum, mean -------------------------------------------------------------------------


def _sum_line(f: Signature) -> str:
    dims, keepdim = f.attrs["dims"], f.attrs["keepdim"]
    letters = unique(f.letters[0])
    assign = "+=" if dims else "="
    return f"y[{' '.join(kept_letters(letters, dims, keepdim))}] {assign} x[{' '.join(letters)}]"


def _sum(site: OperatorTile) -> Kernel:
    dims, keepdim, scale = (site.attrs[k] for k in ("dims", "keepdim", "scale"))
    dtype = site.op.dtypes[0]
    if not dims:
        return lambda x: x.to(dtype)
    if scale == 1:
        return lambda x: x.sum(dims, keepdim, dtype=dtype)
    if not site.is_partial:
        return lambda x: x.mean(dims, keepdim, dtype=dtype)
    return lambda x: x.sum(dims, keepdim, dtype=dtype) * scale


declare("sum", _sum_line, _sum, Traits(SavedTensors.NOTHING))


def total(
    b: Builder,
    x: Value,
    dims: Sequence[int],
    keepdim: bool,
    *,
    mean: bool = False,
    dtype: Any = None,
) -> Any:
    """The sum, or the mean, over dimensions."""
    dtype = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    count = math.prod(x.shape[d] for d in dims)
    shape, suffix = reduced_shape(x, dims, keepdim), "mean" if mean else "sum"
    if not count:  # there is nothing to read
        return full(b, shape, math.nan if mean else 0, dtype, suffix)
    attrs = {"dims": tuple(dims), "keepdim": keepdim, "scale": 1 / count if mean else 1}
    y = b.emit("sum", [x], [(shape, accumulation_dtype(dtype))], attrs, suffix=suffix)
    return cast(b, y, dtype)


@aten("sum")
def _sum_call(
    b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return total(b, x, all_dims(x, dim), keepdim, dtype=dtype)


@aten("mean")
def _mean_call(
    b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return total(b, x, all_dims(x, dim), keepdim, mean=True, dtype=dtype)


def _variance(b: Builder, x: Value, dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> Any:
    """The variance, in float32 where x has half precision."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = all_dims(x, dim)
    lost = correction if correction is not None else 1 if unbiased is None else int(unbiased)
    count = math.prod(x.shape[d] for d in dims)
    if count <= lost:
        raise NotSplittable  # no degree of freedom is left: nan
    _, variance = moments(b, x, dims, suffix="moments")
    if keepdim:
        variance = b.call(A.reshape.default, variance, list(reduced_shape(x, dims, True)))
    return pointwise(b, A.mul.Tensor, variance, count / (count - lost))


@aten("var")
def _var(
    b: Builder, x: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False,
    *, correction: Any = None,
) -> Any:  # fmt: skip
    return cast(b, _variance(b, x, dim, unbiased, keepdim, correction), x.dtype)


@aten("std")
def _std(
    b: Builder, x: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False,
    *, correction: Any = None,
) -> Any:  # fmt: skip
    variance = _variance(b, x, dim, unbiased, keepdim, correction)
    variance = pointwise(b, A.relu.default, variance)  # at zero no gradient passes, as in torch
    return cast(b, pointwise(b, A.sqrt.default, variance), x.dtype)


# -- whole -----------------------------------------------------------------------------


def _whole_line(f: Signature) -> str:
    dims = f.attrs["dims"]
    letters = unique(f.letters[0])
    inside = [a.upper() if d in dims else a for d, a in enumerate(letters)]
    outputs, taken = [], list(letters)
    for shape in f.outputs:
        if len(shape) == len(inside):
            outer = []
            for d, size in enumerate(shape):
                if d in dims and size != f.shapes[0][d]:  # reduced and kept, or topk
                    outer.append(unused_letter(taken).upper())
                    taken.append(outer[-1])
                else:
                    outer.append(inside[d])
        else:
            outer = [a for d, a in enumerate(inside) if d not in dims]
        outputs.append(" ".join(outer))
    left = ", ".join(f"y{i}[{o}]" for i, o in enumerate(outputs))
    return f"{left} = x[{' '.join(inside)}]"


def _whole(site: OperatorTile) -> Kernel:
    target = resolve_overload(site.attrs["call"])
    args, kwargs = site.attrs["args"], site.attrs["kwargs"]

    def run(x: Any) -> Any:
        result = target(*fill_template(args, [x]), **fill_template(kwargs, [x]))
        return result if isinstance(result, torch.Tensor) else tuple(result)

    return run


declare("whole", _whole_line, _whole, Traits(SavedTensors.INPUTS))


def whole(b: Builder, target: Any, x: Value, dims: Sequence[int], *args: Any, **kwargs: Any) -> Any:
    """An ATen call on x that takes the dimensions given whole, and every other one elementwise."""
    result = infer_meta(target, (x, *args), kwargs)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    name = target._schema.name.split("::")[1]
    call = f"{name}.{target._schema.overload_name or 'default'}"
    attrs = {"call": call, "dims": tuple(dims), "args": (OperandRef(0), *args), "kwargs": kwargs}
    shapes = [(o.shape, o.dtype) for o in outputs]
    return b.emit("whole", [x], shapes, attrs, suffix=name)


def _taking_whole(name: str) -> None:
    """Declares an ATen call that takes its `dim` whole or, without one, all dimensions."""

    @aten(name)
    def translate(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Any:
        target = overload(getattr(A, name), (x, *args), kwargs)
        given = arguments(target, (x, *args), kwargs)
        if "other" in given:  # max(x, y)
            return pointwise(b, getattr(A, f"{name}imum").default, x, given["other"])
        dim = given.get("dim")
        if name in ("any", "all") and dim in ([], ()):
            raise NotSplittable  # here alone, no dimensions are not all of them
        return whole(b, target, x, all_dims(x, dim), *args, **kwargs)


for _name in [
    "amax", "amin", "max", "min", "any", "all", "prod", "argmax", "argmin", "cumsum", "cumprod",
    "sort", "argsort",
]:  # fmt: skip
    _taking_whole(_name)


@aten("topk")
def _topk(b: Builder, x: Value, k: int, dim: int = -1, *args: Any) -> Any:
    return whole(b, A.topk.default, x, all_dims(x, dim), k, dim, *args)


@aten("linalg_vector_norm")
def _vector_norm(
    b: Builder,
    x: Value,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    dims = all_dims(x, dim)
    return whole(b, A.linalg_vector_norm.default, x, dims, ord, list(dims), keepdim, dtype=dtype)


@aten("norm")
def _norm(b: Builder, x: Value, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    return _vector_norm(b, x, 2 if p is None else p, dim, keepdim)
