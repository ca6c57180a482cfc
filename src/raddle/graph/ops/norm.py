"""Translates normalisation layers and softmax into statistics and an elementwise operator that reads them.

    moments      m[c], v[c] moments= x[n c h w]        partial means and variances, combined by counts
    lse          l[n] lse= x[n c]                      log-sum-exp; partial results are (maximum, sum)
    batch norm   y[n c h w] = x[n c h w], m[c], v[c], w[c], b[c]
    layer norm   y[n.. c..] = x[n.. c..], m[n..], v[n..], w[c..], b[c..]
    softmax      y[n c] = x[n c], l[n]                 (n.. and c..: any number of dimensions)

Statistics are reductions like any other, so they are exact however they are split. Those of half-precision
numbers are float32, and so is all that is computed from them, as in torch; only the results are rounded. A
device with all of the reduced dimensions runs the native call (fused.py).

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
from torch import Tensor

from raddle.errors import InputError
from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Op, Value
from raddle.graph.letters import unique
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.pointwise import cast
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which torch accumulates sums of numbers of this type."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


# -- statistics ------------------------------------------------------------------------


def _statistics_notation(assign: str, outputs: Sequence[str]) -> Any:
    """Returns a function that writes the notation of statistics; outputs: a letter for the name of each."""

    def notation(sig: Signature) -> str:
        letters = unique(sig.letters[0])
        kept = " ".join(a for d, a in enumerate(letters) if d not in sig.attrs["dims"])
        left = ", ".join(f"{o}[{kept}]" for o in outputs)
        return f"{left} {assign} x[{' '.join(letters)}]"

    return notation


def _moments_kernel(tile: OperatorTile) -> Kernel:
    dims, dtype = tile.attrs["dims"], tile.op.dtypes[0]

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(x.to(dtype), dims, correction=0)
        return mean, variance

    return run


def _merge_moments(
    op: Op, parts: Sequence[tuple[Tensor, ...]], counts: Sequence[int]
) -> tuple[Tensor, ...]:
    """Combines the means m and the variances v of parts, by the formula of Chan, Golub and LeVeque."""
    total = sum(counts)
    shares = [count / total for count in counts]
    mean = sum(
        (s * m for s, (m, _) in zip(shares, parts, strict=True)), torch.zeros_like(parts[0][0])
    )
    terms = (s * (v + (m - mean) ** 2) for s, (m, v) in zip(shares, parts, strict=True))
    return mean, sum(terms, torch.zeros_like(mean))


def _lse_kernel(tile: OperatorTile) -> Kernel:
    (dim,), dtype = tile.attrs["dims"], tile.op.dtypes[0]
    if not tile.is_partial:
        return lambda x: torch.logsumexp(x.to(dtype), dim)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.to(dtype)
        # The maximum only scales, so it needs no gradient. It is clamped to be finite: a part that is all
        # -inf (masked) would else give 0 * inf in the backward.
        maximum = x.detach().amax(dim).clamp(min=torch.finfo(x.dtype).min)
        return maximum, (x - maximum.unsqueeze(dim)).exp().sum(dim)

    return run


def _merge_lse(
    op: Op, parts: Sequence[tuple[Tensor, ...]], counts: Sequence[int]
) -> tuple[Tensor, ...]:
    """Combines partial results of the kernel above: each has a maximum m and the sum s of exp(x - m)."""
    maximum = torch.stack([m for m, _ in parts]).amax(0)
    total = sum((s * (m - maximum).exp() for m, s in parts), torch.zeros_like(maximum))
    return (maximum + total.log(),)


declare(
    "moments", _statistics_notation("moments=", "mv"), _moments_kernel, Traits(SavedTensors.INPUTS),
    flops_per_point=3, merge=_merge_moments,
)  # fmt: skip
declare(
    "lse", _statistics_notation("lse=", "l"), _lse_kernel, Traits(SavedTensors.INPUTS),
    flops_per_point=3, merge=_merge_lse,
)  # fmt: skip


def moments(b: Builder, x: Value, dims: Sequence[int], suffix: str) -> Any:
    """Adds the mean and the (biased) variance over dimensions."""
    if not x.dtype.is_floating_point:
        raise NotSplittable  # the variance of complex numbers is real
    shape = tuple(s for d, s in enumerate(x.shape) if d not in dims)
    out = (shape, accumulation_dtype(x.dtype))
    return b.emit("moments", [x], [out, out], {"dims": tuple(dims)}, suffix=suffix)


def log_sum_exp(b: Builder, x: Value, dim: int, suffix: str) -> Any:
    """Adds log(sum(exp(x))) over one dimension."""
    if not x.dtype.is_floating_point:
        raise NotSplittable
    shape = tuple(s for d, s in enumerate(x.shape) if d != dim)
    return b.emit(
        "lse", [x], [(shape, accumulation_dtype(x.dtype))], {"dims": (dim,)}, suffix=suffix
    )


@aten("logsumexp")
def _translate_logsumexp(b: Builder, x: Value, dim: Any, keepdim: bool = False) -> Any:
    if not x.shape:
        raise NotSplittable
    dims, y = [dim] if isinstance(dim, int) else list(dim), x
    for d in sorted((d % len(x.shape) for d in dims), reverse=True):
        y = log_sum_exp(b, y, d, "logsumexp")
        if keepdim:
            y = b.call(A.unsqueeze.default, y, d)
    return cast(b, y, x.dtype)


# -- batch norm ------------------------------------------------------------------------


def _batch_norm_notation(sig: Signature) -> str:
    letters = unique(sig.letters[0])
    y, c = " ".join(letters), letters[1]
    per_channel = "".join(f", s{i}[{c}]" for i in range(len(sig.shapes) - 1))
    return f"y[{y}] = x[{y}]{per_channel}"


def _batch_norm_kernel(tile: OperatorTile) -> Kernel:
    eps, dtype = tile.attrs["eps"], tile.op.dtypes[0]

    def run(
        x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        shape = (1, -1, *[1] * (x.dim() - 2))
        x, mean, var = (t.to(accumulation_dtype(dtype)) for t in (x, mean, var))
        scale: Tensor = (var + eps).rsqrt()
        scale = scale if weight is None else scale * weight
        y: Tensor = (x - mean.view(shape)) * scale.view(shape)
        y = y if bias is None else y + bias.view(shape)
        return y.to(dtype)

    return run


def _running_statistics_kernel(tile: OperatorTile) -> Kernel:
    """Returns the kernel of running statistics: p, q from the old a, b and the batch's m, v (biased).

    The attribute "unbias" is the factor that makes v the unbiased variance.
    """
    momentum, unbias = tile.attrs["momentum"], tile.attrs["unbias"]

    def moving_average(old: Tensor, new: Tensor) -> Tensor:
        now: Tensor = old + momentum * (new.detach() - old)
        return now.to(old.dtype)

    def run(mean: Tensor, var: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return moving_average(mean, m), moving_average(var, v * unbias)

    return run


declare(
    "batch_norm", _batch_norm_notation, _batch_norm_kernel, Traits(SavedTensors.INPUTS), flops_per_point=4
)  # fmt: skip
declare(
    "running", "p[c], q[c] = a[c], b[c], m[c], v[c]", _running_statistics_kernel,
    Traits(SavedTensors.NOTHING, updates_buffer=True), flops_per_point=4,
)  # fmt: skip


@aten("batch_norm")
def _translate_batch_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value | None,
    var: Value | None, training: bool, momentum: float, eps: float, *_: Any,
) -> Any:  # fmt: skip
    inputs = [x, weight, bias, mean, var]
    out = [(x.shape, x.dtype)]
    if not training:
        return b.emit("batch_norm", [x, mean, var, weight, bias], out, {"eps": eps})
    dims = [d for d in range(len(x.shape)) if d != 1]
    count = math.prod(x.shape[d] for d in dims)
    attrs = {"eps": eps, "momentum": momentum}
    with b.composite("batch_norm", inputs, attrs) as outputs:
        m, v = moments(b, x, dims, "moments")
        updated: Sequence[Value] = ()
        # The running statistics come before the result y: one native call computes all three, and a
        # pipeline stage may end with y.
        if mean is not None and var is not None:
            attrs = {"momentum": momentum, "unbias": count / max(1, count - 1)}
            shapes = [(mean.shape, mean.dtype), (var.shape, var.dtype)]
            updated = b.emit("running", [mean, var, m, v], shapes, attrs, suffix="running")
            b.record_hidden_write(mean, updated[0])
            b.record_hidden_write(var, updated[1])
        y = b.emit("batch_norm", [x, m, v, weight, bias], out, {"eps": eps}, suffix="")
        outputs.extend([y, *updated])
    return y


# -- layer, group, instance and RMS norm -----------------------------------------------


def _layer_norm_notation(sig: Signature) -> str:
    letters, keep = unique(sig.letters[0]), len(sig.shapes[0]) - sig.attrs["rank"]
    # leading: the letters n.. in the notation above, normalised: c..
    y, leading, normalised = " ".join(letters), " ".join(letters[:keep]), " ".join(letters[keep:])
    stats = "".join(f", s{i}[{leading}]" for i in range(sig.attrs["statistics"]))
    weight_and_bias = "".join(
        f", w{i}[{normalised}]" for i in range(len(sig.shapes) - 1 - sig.attrs["statistics"])
    )
    return f"y[{y}] = x[{y}]{stats}{weight_and_bias}"


def _layer_norm_kernel(tile: OperatorTile) -> Kernel:
    eps, ones, dtype = tile.attrs["eps"], (1,) * tile.attrs["rank"], tile.op.dtypes[0]

    def run(
        x: Tensor,
        mean: Tensor | None,
        var: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        x = x.to(var.dtype)
        x = x if mean is None else x - mean.reshape(*mean.shape, *ones)
        y: Tensor = x * (var + eps).rsqrt().reshape(*var.shape, *ones)
        y = y if weight is None else y * weight
        y = y if bias is None else y + bias
        return y.to(dtype)

    return run


declare(
    "layer_norm", _layer_norm_notation, _layer_norm_kernel, Traits(SavedTensors.INPUTS), flops_per_point=4
)  # fmt: skip


def _normalise(
    b: Builder, x: Value, rank: int, weight: Value | None, bias: Value | None, eps: float,
    dtype: torch.dtype, suffix: str | None = "",
) -> Any:  # fmt: skip
    """Adds the normalisation over the last `rank` dimensions; dtype: of the result."""
    dims = range(len(x.shape) - rank, len(x.shape))
    m, v = moments(b, x, dims, "moments")
    attrs = {"rank": rank, "eps": eps, "statistics": 2}  # 2: mean and variance
    return b.emit("layer_norm", [x, m, v, weight, bias], [(x.shape, dtype)], attrs, suffix=suffix)


@aten("layer_norm")
def _translate_layer_norm(
    b: Builder, x: Value, shape: Sequence[int], weight: Value | None = None,
    bias: Value | None = None, eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    attrs = {"rank": len(shape), "eps": eps}
    with b.composite("layer_norm", [x, weight, bias], attrs) as outputs:
        y = _normalise(b, x, len(shape), weight, bias, eps, x.dtype)
        outputs.append(y)
    return y


@aten("rms_norm")
def _translate_rms_norm(
    b: Builder,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> Any:
    eps = torch.finfo(accumulation_dtype(x.dtype)).eps if eps is None else eps
    rank = len(shape)
    dims = list(range(len(x.shape) - rank, len(x.shape)))
    with b.composite("rms_norm", [x, weight], {"rank": rank, "eps": eps}) as outputs:
        accurate = cast(b, x, accumulation_dtype(x.dtype))
        square = b.call(A.mul.Tensor, accurate, accurate)
        mean = b.call(A.mean.dim, square, dims)
        attrs = {"rank": rank, "eps": eps, "statistics": 1}  # 1: the mean of squares
        y = b.emit("layer_norm", [x, None, mean, weight], [(x.shape, x.dtype)], attrs, suffix="")
        outputs.append(y)
    return y


@aten("group_norm")
def _translate_group_norm(
    b: Builder, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    n, c, *spatial = x.shape
    with b.composite("group_norm", [x, weight, bias], {"groups": groups, "eps": eps}) as outputs:
        parts = b.call(A.reshape.default, x, [n, groups, c // groups, *spatial])
        normalised = _normalise(
            b, parts, 1 + len(spatial), None, None, eps, accumulation_dtype(x.dtype), None
        )
        y = b.call(A.reshape.default, normalised, list(x.shape))
        y = cast(b, affine(b, y, weight, bias), x.dtype)
        outputs.append(y)
    return y


@aten("instance_norm")
def _translate_instance_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value | None,
    var: Value | None, use_input_stats: bool, momentum: float, eps: float, *_: Any,
) -> Any:  # fmt: skip
    if mean is not None and use_input_stats:
        raise InputError(
            "the model uses InstanceNorm with running statistics, which cannot be captured: "
            "use track_running_stats=False."
        )
    if not use_input_stats:
        raise NotSplittable
    return _translate_group_norm(b, x, x.shape[1], weight, bias, eps)


def affine(b: Builder, x: Value, weight: Value | None, bias: Value | None) -> Any:
    """Adds x * weight + bias, with a weight and a bias for each channel."""
    shape = [-1, *[1] * (len(x.shape) - 2)]
    if weight is not None:
        x = b.call(A.mul.Tensor, x, b.call(A.reshape.default, weight, shape))
    if bias is not None:
        x = b.call(A.add.Tensor, x, b.call(A.reshape.default, bias, shape))
    return x


# -- softmax ---------------------------------------------------------------------------


def _softmax_notation(sig: Signature) -> str:
    letters = unique(sig.letters[0])
    kept = " ".join(a for d, a in enumerate(letters) if d != sig.attrs["dim"])
    y = " ".join(letters)
    return f"y[{y}] = x[{y}], l[{kept}]"


def _softmax_kernel(tile: OperatorTile) -> Kernel:
    dim, dtype = tile.attrs["dim"], tile.op.dtypes[0]
    if tile.attrs["log"]:
        return lambda x, lse: (x - lse.unsqueeze(dim)).to(dtype)
    return lambda x, lse: (x - lse.unsqueeze(dim)).exp().to(dtype)


declare(
    "softmax", _softmax_notation, _softmax_kernel, Traits(SavedTensors.OUTPUT), flops_per_point=2
)


def softmax(b: Builder, x: Value, dim: int, dtype: Any = None, log: bool = False) -> Any:
    """Adds a softmax or, with `log`, a log-softmax."""
    if dtype is not None:
        x = b.call(A.to.dtype, x, dtype)
    if not x.shape:
        raise NotSplittable
    dim = dim % len(x.shape)
    kind = "log_softmax" if log else "softmax"
    with b.composite(kind, [x], {"dim": dim}) as outputs:
        lse = log_sum_exp(b, x, dim, "lse")
        y = b.emit("softmax", [x, lse], [(x.shape, x.dtype)], {"dim": dim, "log": log}, suffix="")
        outputs.append(y)
    return y


@aten("softmax", "_softmax", "special_softmax")
def _translate_softmax(b: Builder, x: Value, dim: int, dtype: Any = None) -> Any:
    return softmax(b, x, dim, None if isinstance(dtype, bool) else dtype)


@aten("log_softmax", "_log_softmax", "special_log_softmax")
def _translate_log_softmax(b: Builder, x: Value, dim: int, dtype: Any = None) -> Any:
    return softmax(b, x, dim, None if isinstance(dtype, bool) else dtype, log=True)
