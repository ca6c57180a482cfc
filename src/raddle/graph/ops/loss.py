"""Translates losses, such as mean squared error and cross entropy, into operators that can be split.

An elementwise loss becomes an operator that computes its elements, and another one for their sum or mean.
Cross entropy becomes these operators:

    lse[n] lse= x[n c]              the log-sum-exp over the classes c
    picked[n] += x[n c], t[n]       x[n t[n]], the logit of the target t[n] (gather.py)
    each[n] = lse[n] - picked[n]    the loss of a sample, times the weight of its class
    loss[] = sum of each / sum of weights, both over all samples that count

So it is exact if samples, classes or pixels are split: the mean divides by the *global* number of samples
that count, which depends on the data (a sample whose target is ignore_index does not count).

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph; its
argument `suffix` is the last part of the operator's name.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.ctc import ctc_losses
from raddle.graph.graph import Value
from raddle.graph.operator_kind import Kernel, OperatorTile, declare
from raddle.graph.ops.gather import pick
from raddle.graph.ops.norm import accumulation_dtype, log_sum_exp, softmax
from raddle.graph.ops.pointwise import arguments_by_name, cast, pointwise, pointwise_notation
from raddle.graph.ops.reduce import sum_or_mean
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten
NONE, MEAN = 0, 1  # values of the argument `reduction` in ATen; 2 is the sum


def reduce_loss(b: Builder, losses: Value, reduction: int) -> Any:
    """Adds the sum or the mean of losses and returns it; returns the losses if reduction is NONE."""
    if reduction == NONE:
        return losses
    # The argument False of sum_or_mean, here and below, is keepdim.
    return sum_or_mean(b, losses, tuple(range(len(losses.shape))), False, mean=reduction == MEAN)


def _declare_elementwise(name: str) -> None:
    """Registers a loss(x, target, ..., reduction, ...) as an elementwise operator and a reduction."""
    target = getattr(A, name).default
    schema = target._schema.arguments

    @aten(name)
    def translate(b: Builder, *args: Any, **kwargs: Any) -> Any:
        arguments = arguments_by_name(target, args, kwargs)
        reduction, arguments["reduction"] = arguments["reduction"], NONE
        positional = [arguments[a.name] for a in schema if not a.kwarg_only]
        keywords = {a.name: arguments[a.name] for a in schema if a.kwarg_only}
        return reduce_loss(b, pointwise(b, target, *positional, **keywords), reduction)


for _name in [
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "soft_margin_loss",
    "poisson_nll_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
]:
    _declare_elementwise(_name)


# -- cross entropy ---------------------------------------------------------------------


def _entropy_kernel(tile: OperatorTile) -> Kernel:
    """Returns the kernel that computes the loss of each sample.

    Its operands are the target t, x[t], lse, w[t], the sum of w*x over classes, and the sum of w (x: the
    logits, w: the weights of the classes). The last two are for label smoothing.
    """
    ignore, smoothing, classes = (tile.attrs[k] for k in ("ignore", "smoothing", "classes"))
    dtype = tile.op.dtypes[0]

    def run(
        t: Tensor, picked: Tensor, lse: Tensor | None = None, weight: Tensor | None = None,
        weighted_sum: Tensor | None = None, weight_sum: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        picked = picked.to(dtype)
        loss = -picked if lse is None else lse - picked
        loss = loss if weight is None else loss * weight
        if smoothing and lse is not None and weighted_sum is not None:
            smooth = lse * (classes if weight_sum is None else weight_sum) - weighted_sum
            loss = (1 - smoothing) * loss + smoothing / classes * smooth
        return loss.masked_fill(t == ignore, 0).to(dtype)

    return run


def _mean_divisor_kernel(tile: OperatorTile) -> Kernel:
    """Returns the kernel that computes each sample's part of the mean's divisor.

    The part is the sample's weight, or 1 without weights, or 0 if the sample is ignored.
    """
    ignore, dtype = tile.attrs["ignore"], tile.op.dtypes[0]
    return lambda t, weight=None: (
        (t != ignore) if weight is None else weight.masked_fill(t == ignore, 0)
    ).to(dtype)


declare(
    "entropy", pointwise_notation, _entropy_kernel, Traits(SavedTensors.INPUTS), flops_per_point=4
)
# "counted" is the number that a sample adds to the divisor of the mean.
declare(
    "counted", pointwise_notation, _mean_divisor_kernel, Traits(SavedTensors.NOTHING, is_cheap=True)
)


def _likelihood(
    b: Builder, x: Value, target: Value, weight: Value | None, reduction: int, ignore: int,
    smoothing: float, logits: bool,
) -> Any:  # fmt: skip
    """Adds the negative log likelihood of the targets; logits: x has logits, not log-probabilities."""
    dim = 1 if len(x.shape) > 1 else 0
    wide_dtype = accumulation_dtype(x.dtype)  # of the losses, until their sum is complete
    classes, out = x.shape[dim], [(target.shape, wide_dtype)]
    lse = log_sum_exp(b, x, dim, "lse") if logits else None
    picked = pick(b, x, target, dim, "picked")
    target_weight = None if weight is None else pick(b, weight, target, 0, "weight")
    weighted_sum = weight_sum = None
    if smoothing:
        scaled = x
        if weight is not None:
            shape = [-1, *[1] * (len(x.shape) - 1 - dim)]
            scaled = b.call(A.mul.Tensor, x, b.call(A.reshape.default, weight, shape))
            weight_sum = sum_or_mean(b, weight, (0,), False, dtype=wide_dtype)
        weighted_sum = sum_or_mean(b, scaled, (dim,), False, dtype=wide_dtype)
    attrs = {"ignore": ignore, "smoothing": smoothing, "classes": classes}
    operands = [target, picked, lse, target_weight, weighted_sum, weight_sum]
    losses = b.emit("entropy", operands, out, attrs, suffix="each")
    if reduction != MEAN:
        return cast(b, reduce_loss(b, losses, reduction), x.dtype)
    counted = b.emit("counted", [target, target_weight], out, {"ignore": ignore}, suffix="counted")
    sample_dims = tuple(range(len(target.shape)))
    sums = [sum_or_mean(b, v, sample_dims, False) for v in (losses, counted)]
    return cast(b, pointwise(b, A.div.Tensor, *sums), x.dtype)


@aten("cross_entropy_loss")
def _translate_cross_entropy(
    b: Builder, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    if target.dtype.is_floating_point:
        return _soft_target_loss(b, x, target, weight, reduction, label_smoothing)
    attrs = {"reduction": reduction, "ignore": ignore_index, "smoothing": label_smoothing}
    with b.composite("cross_entropy", [x, target, weight], attrs) as outputs:
        loss = _likelihood(
            b, x, target, weight, reduction, ignore_index, label_smoothing, logits=True
        )
        outputs.append(loss)
    return loss


def _soft_target_loss(
    b: Builder, x: Value, target: Value, weight: Value | None, reduction: int, smoothing: float
) -> Any:
    """Adds the cross entropy with targets that are probabilities of classes."""
    dim = 1 if len(x.shape) > 1 else 0
    if weight is not None:
        raise NotSplittable
    if smoothing:
        target = pointwise(b, A.mul.Tensor, target, 1 - smoothing)
        target = pointwise(b, A.add.Tensor, target, smoothing / x.shape[dim])
    logs = softmax(b, x, dim, log=True)
    losses = sum_or_mean(b, pointwise(b, A.mul.Tensor, logs, target), (dim,), False)
    return reduce_loss(b, pointwise(b, A.neg.default, losses), reduction)


@aten("nll_loss", "nll_loss_nd", "nll_loss2d")
def _translate_nll(
    b: Builder, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN,
    ignore_index: int = -100,
) -> Any:  # fmt: skip
    return _likelihood(b, x, target, weight, reduction, ignore_index, 0.0, logits=False)


# -- connectionist temporal classification ---------------------------------------------


def _ctc_kernel(tile: OperatorTile) -> Kernel:
    """Returns the kernel that computes the loss of each sample."""
    blank, zero_infinity = tile.attrs["blank"], tile.attrs["zero_infinity"]

    def run(x: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # torch.compile refuses F.ctc_loss
            losses: Tensor = ctc_losses(x, targets, lengths, target_lengths, blank, zero_infinity)
            return losses
        return F.ctc_loss(x, targets, lengths, target_lengths, blank, "none", zero_infinity)

    return run


declare(
    "ctc",
    "y[n] = x[: n :], targets[n :], lengths[n], target_lengths[n]",
    _ctc_kernel,
    Traits(SavedTensors.INPUTS),
)


@aten("ctc_losses")
def _translate_ctc(
    b: Builder, x: Value, targets: Value, lengths: Value, target_lengths: Value, blank: int,
    zero_infinity: bool,
) -> Any:  # fmt: skip
    """The losses of the samples, before their sum or mean (ctc.py)."""
    attrs = {"blank": blank, "zero_infinity": zero_infinity}
    # Three products are added for each step and each place in the target, which has blanks in between.
    flops = 6 * x.shape[0] * (2 * targets.shape[1] + 1)
    operands = [x, targets, lengths, target_lengths]
    return b.emit("ctc", operands, [((x.shape[1],), x.dtype)], attrs, flops_per_point=flops)
