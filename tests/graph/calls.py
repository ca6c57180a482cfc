"""Random ATen calls of every operator kind, for property tests: hypothesis draws shapes and attributes.

`CALLS` has a strategy of calls for each function with the decorator `@call`. n: samples, c: channels, cg
and kg: filters and input channels of a group, t and s: queries and keys, k: features that are summed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

import raddle.graph.ctc  # noqa: F401  (declares raddle::ctc_losses)

A = torch.ops.aten


class T(NamedTuple):
    """A tensor argument: normal random numbers or, if `below` > 0, integers from `low` to `below` - 1."""

    shape: tuple[int, ...]
    below: int = 0
    low: int = 0
    role: str = "input"
    boolean: bool = False
    positive: bool = False
    ascending: bool = False
    dtype: torch.dtype = torch.float64

    def make(self, generator: torch.Generator) -> torch.Tensor:
        if self.boolean:
            return torch.randint(0, 2, self.shape, generator=generator).bool()
        if self.below:
            integers = torch.randint(self.low, self.below, self.shape, generator=generator)
            return integers.sort().values if self.ascending else integers
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        x = torch.randn(self.shape, generator=generator, dtype=wide)
        x = x.sigmoid() * 0.9 + 0.05 if self.positive else x
        return x.to(self.dtype)


class Call(NamedTuple):
    """An ATen call whose tensors are Ts."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Any = MappingProxyType({})


@torch.library.custom_op("raddle_test_calls::grouped_mm_fallback", mutates_args=())
def grouped_mm_fallback(x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Each row times the matrix of its group; rows after the last group are 0. As transformers has it."""
    ends = offs.tolist()
    starts = [0, *ends[:-1]]
    parts = [x[a:b] @ weight[e] for e, (a, b) in enumerate(zip(starts, ends, strict=True))]
    return torch.cat([*parts, x.new_zeros(x.shape[0] - ends[-1], weight.shape[2])])


@grouped_mm_fallback.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


CALLS: dict[str, st.SearchStrategy[Call]] = {}


def call(function: Callable[..., Call]) -> Callable[..., Call]:
    """Decorator: adds the function's calls to CALLS."""
    CALLS[function.__name__] = st.composite(function)()
    return function


def P(*shape: int) -> T:
    """A parameter."""
    return T(tuple(shape), role="parameter")


sizes = st.integers(1, 5)


def shape_of(draw: Any, low: int = 1, high: int = 4, most: int = 5) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, most), min_size=low, max_size=high)))


def dim_of(draw: Any, shape: tuple[int, ...]) -> int:
    """A dimension, counted from either end; for a tensor without dimensions 0 or -1."""
    rank = max(1, len(shape))
    return int(draw(st.integers(-rank, rank - 1)))


def choose(draw: Any, *options: Any) -> Any:
    return draw(st.sampled_from(options))


# -- convolutions and pools ------------------------------------------------------------


@call
def conv(draw: Any) -> Call:
    rank = choose(draw, 1, 2, 2, 3)
    groups = choose(draw, 1, 1, 2, 3)
    cg, kg = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 3)) for _ in range(rank)]
    padding: Any = [draw(st.integers(0, 3)) for _ in range(rank)]
    spatial = [
        draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), d * (k - 1) + 5))
        for d, k, p in zip(dilation, kernel, padding, strict=True)
    ]
    if all(s == 1 for s in stride) and draw(st.booleans()):
        padding = "same"
    x = T((draw(st.integers(1, 3)), groups * kg, *spatial))
    bias = P(groups * cg) if draw(st.booleans()) else None
    packet = (A.conv1d, A.conv2d, A.conv3d)[rank - 1]
    target = packet.padding if padding == "same" else packet.default
    return Call(target, (x, P(groups * cg, kg, *kernel), bias, stride, padding, dilation, groups))


@call
def conv_transpose(draw: Any) -> Call:
    rank = choose(draw, 1, 2, 2, 3)
    groups = choose(draw, 1, 1, 2, 3)
    cg, kg = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    spatial = [draw(st.integers(2, 4)) for _ in range(rank)]
    padding = [
        draw(st.integers(0, max(0, min(2, ((n - 1) * s + d * (k - 1) + e) // 2))))
        for n, s, d, k, e in zip(spatial, stride, dilation, kernel, extra, strict=True)
    ]
    x = T((draw(st.integers(1, 2)), groups * kg, *spatial))
    bias = P(groups * cg) if draw(st.booleans()) else None
    target = (A.conv_transpose1d.default, A.conv_transpose2d.input, A.conv_transpose3d.input)[
        rank - 1
    ]
    weight = P(groups * kg, cg, *kernel)
    return Call(target, (x, weight, bias, stride, padding, extra, groups, dilation))


def _pool(draw: Any, dilated: bool) -> tuple[Any, ...]:
    rank = choose(draw, 1, 2, 2, 3)
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    dilation = [draw(st.integers(1, 2)) if dilated else 1 for _ in range(rank)]
    spatial = [
        draw(st.integers(d * (k - 1) + 1, d * (k - 1) + 6))
        for k, d in zip(kernel, dilation, strict=True)
    ]
    x = T((draw(st.integers(1, 2)), draw(st.integers(1, 3)), *spatial))
    return rank, x, kernel, stride, padding, dilation


@call
def max_pool(draw: Any) -> Call:
    rank, x, kernel, stride, padding, dilation = _pool(draw, True)
    target = (A.max_pool1d.default, A.max_pool2d.default, A.max_pool3d.default)[rank - 1]
    return Call(target, (x, kernel, stride, padding, dilation, draw(st.booleans())))


@call
def avg_pool(draw: Any) -> Call:
    rank, x, kernel, stride, padding, _ = _pool(draw, False)
    target = (A.avg_pool1d.default, A.avg_pool2d.default, A.avg_pool3d.default)[rank - 1]
    args = [x, kernel, stride, padding, draw(st.booleans()), draw(st.booleans())]
    if rank > 1:
        args.append(choose(draw, None, None, 2, 7))
    return Call(target, tuple(args))


@call
def adaptive_pool(draw: Any) -> Call:
    rank = choose(draw, 1, 2, 2, 3)
    x = T(
        (
            draw(st.integers(1, 2)),
            draw(st.integers(1, 3)),
            *(draw(st.integers(1, 7)) for _ in range(rank)),
        )
    )
    output = [draw(st.integers(1, 4)) for _ in range(rank)]
    largest = draw(st.booleans())
    packets = (
        (A.adaptive_max_pool1d, A.adaptive_max_pool2d, A.adaptive_max_pool3d)
        if largest
        else (A.adaptive_avg_pool1d, A.adaptive_avg_pool2d, A.adaptive_avg_pool3d)
    )
    return Call(packets[rank - 1].default, (x, output))


@call
def interpolate(draw: Any) -> Call:
    mode = choose(draw, "nearest", "exact", "linear", "linear", "cubic", "cubic_aa", "linear_aa")
    rank = 2 if "cubic" in mode or "aa" in mode else choose(draw, 1, 2, 3)
    # torch 2.13 gives all rows of an image of width 1 the values of the first one, with antialiasing.
    smallest = 2 if "aa" in mode else 1
    x = T(
        (
            draw(st.integers(1, 2)),
            draw(st.integers(1, 2)),
            *(draw(st.integers(smallest, 5)) for _ in range(rank)),
        )
    )
    corners = [draw(st.booleans())] if mode not in ("nearest", "exact") else []
    by_scale = draw(st.booleans())
    # For the sizes that 1.1 and 2.1 give (the same, doubled) torch uses another formula.
    scales = [choose(draw, 0.5, 1.1, 1.5, 2.0, 2.1, 2.7, 3.0) for _ in range(rank)]
    if by_scale and all(
        math.floor(s * f) >= smallest for s, f in zip(x.shape[2:], scales, strict=True)
    ):
        output, factors = None, scales
    else:
        output, factors = [draw(st.integers(smallest, 8)) for _ in range(rank)], None
    name = {
        "nearest": f"upsample_nearest{rank}d",
        "exact": f"_upsample_nearest_exact{rank}d",
        "linear": ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")[rank - 1],
        "cubic": "upsample_bicubic2d",
        "cubic_aa": "_upsample_bicubic2d_aa",
        "linear_aa": "_upsample_bilinear2d_aa",
    }[mode]
    return Call(getattr(A, name).vec, (x, output, *corners, factors))


@call
def grid_sampler(draw: Any) -> Call:
    rank, n, c = choose(draw, 2, 3), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    before, after = ([draw(st.integers(1, 4)) for _ in range(rank)] for _ in "xy")
    grid = T((n, *after, rank))
    options = draw(st.integers(0, 1)), draw(st.integers(0, 2)), draw(st.booleans())
    return Call(A.grid_sampler.default, (T((n, c, *before)), grid, *options))


# -- contractions ----------------------------------------------------------------------


@call
def linear(draw: Any) -> Call:
    *lead, k, c = (*shape_of(draw, 1, 3), draw(sizes), draw(sizes))
    return Call(A.linear.default, (T((*lead, k)), P(c, k), P(c) if draw(st.booleans()) else None))


@call
def matmul(draw: Any) -> Call:
    m, k, c = draw(sizes), draw(sizes), draw(sizes)
    batch = shape_of(draw, 0, 2, 3)
    left = tuple(1 if draw(st.booleans()) else s for s in batch)[draw(st.integers(0, len(batch))) :]
    x = choose(draw, (k,), (m, k), (*batch, m, k), (*left, m, k))
    w = choose(draw, (k,), (k, c), (*batch, k, c), (*left, k, c))
    return Call(A.matmul.default, (T(x), T(w)))


@call
def addmm(draw: Any) -> Call:
    m, k, c = draw(sizes), draw(sizes), draw(sizes)
    bias = choose(draw, (c,), (1, c), (m, c), (m, 1))
    scale = {"beta": choose(draw, 1, 0.5, 0), "alpha": choose(draw, 1, 2.0)}
    return Call(A.addmm.default, (P(*bias), T((m, k)), P(k, c)), scale)


@call
def baddbmm(draw: Any) -> Call:
    n, m, k, c = (draw(sizes) for _ in range(4))
    return Call(
        A.baddbmm.default, (T(choose(draw, (n, m, c), (1, 1, c))), T((n, m, k)), T((n, k, c)))
    )


@call
def einsum(draw: Any) -> Call:
    equation = choose(
        draw, "ntc,nsc->nts", "ij,jk", "bhid,bhjd->bhij", "i,j->ij", "nc,c->n", "ab,bc,cd->ad", "abc->ca",
        "...ij,...jk->...ik", "ijk->j", "bld,hd->blh",
    )  # fmt: skip
    left = equation.split("->")[0].replace("...", "yz")
    extent = {s: draw(st.integers(1, 4)) for s in left if s.isalpha()}
    operands = [T(tuple(extent[s] for s in spec)) for spec in left.split(",")]
    return Call(A.einsum.default, (equation, operands))


@call
def attention(draw: Any) -> Call:
    n, h, t, s, k, c = (draw(st.integers(1, 4)) for _ in range(6))
    causal = draw(st.booleans())
    mask = None
    if not causal:
        mask = choose(draw, None, T((t, s)), T((n, 1, t, s)), T((n, h, t, s)), T((1, h, 1, s)))
    scale = choose(draw, None, 0.3)
    dropout = choose(draw, 0.0, 0.4)
    args = (T((n, h, t, k)), T((n, h, s, k)), T((n, h, s, c)), mask, dropout, causal)
    return Call(A.scaled_dot_product_attention.default, args, {"scale": scale})


# -- normalisation ---------------------------------------------------------------------


@call
def batch_norm(draw: Any) -> Call:
    n, c = draw(st.integers(2, 4)), draw(sizes)
    x = T((n, c, *shape_of(draw, 0, 3, 3)))
    affine = (P(c), P(c)) if draw(st.booleans()) else (None, None)
    training = draw(st.booleans())
    running = (T((c,), role="buffer"), T((c,), role="buffer", positive=True))
    if training and draw(st.booleans()):
        running = (None, None)  # type: ignore[assignment]
    return Call(A.batch_norm.default, (x, *affine, *running, training, 0.1, 1e-5, False))


@call
def layer_norm(draw: Any) -> Call:
    lead, tail = shape_of(draw, 0, 2), shape_of(draw, 1, 2)
    affine = [P(*tail) if draw(st.booleans()) else None for _ in range(2)]
    if draw(st.booleans()):
        eps = choose(draw, 1e-3, None)
        return Call(A.rms_norm.default, (T((*lead, *tail)), tail, affine[0], eps))
    return Call(A.layer_norm.default, (T((*lead, *tail)), tail, *affine, 1e-3))


@call
def group_norm(draw: Any) -> Call:
    groups, per = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    c = groups * per
    x = T((draw(st.integers(2, 3)), c, 2, *shape_of(draw, 0, 1, 4)))
    affine = [P(c) if draw(st.booleans()) else None for _ in range(2)]
    if math.prod(x.shape[2:]) > 1 and draw(st.booleans()):
        return Call(A.instance_norm.default, (x, *affine, None, None, True, 0.1, 1e-3, False))
    return Call(A.group_norm.default, (x, groups, *affine, 1e-3))


@call
def softmax(draw: Any) -> Call:
    shape = shape_of(draw, 0)
    target = choose(draw, A.softmax.int, A.log_softmax.int)
    return Call(target, (T(shape), dim_of(draw, shape)))


@call
def logsumexp(draw: Any) -> Call:
    shape = shape_of(draw, 0)
    dims = draw(st.lists(st.integers(0, max(0, len(shape) - 1)), min_size=1, unique=True))
    return Call(A.logsumexp.default, (T(shape), dims, draw(st.booleans())))


# -- losses ----------------------------------------------------------------------------


@call
def cross_entropy(draw: Any) -> Call:
    n, c, spatial = draw(sizes), draw(st.integers(2, 5)), shape_of(draw, 0, 2, 3)
    weight = T((c,), positive=True) if draw(st.booleans()) else None
    reduction = draw(st.integers(0, 2))
    if draw(st.integers(0, 4)) == 0:
        soft = T((n, c, *spatial), positive=True)
        return Call(
            A.cross_entropy_loss.default,
            (T((n, c, *spatial)), soft, None, reduction, -100, choose(draw, 0.0, 0.2)),
        )
    ignore = choose(draw, -100, 1)
    target = T((n, *spatial), below=c, low=0)
    if reduction == 1 and ignore == 1:
        n = max(n, 3)
    args = (T((n, c, *spatial)), target._replace(shape=(n, *spatial)), weight, reduction, ignore)
    return Call(A.cross_entropy_loss.default, (*args, choose(draw, 0.0, 0.2)))


@call
def nll_loss(draw: Any) -> Call:
    n, c = draw(sizes), draw(st.integers(2, 5))
    weight = T((c,), positive=True) if draw(st.booleans()) else None
    args = (T((n, c)), T((n,), below=c), weight, draw(st.integers(0, 2)), -100)
    return Call(A.nll_loss_nd.default, args)


@call
def elementwise_loss(draw: Any) -> Call:
    shape, reduction = shape_of(draw), draw(st.integers(0, 2))
    losses = A.mse_loss, A.l1_loss, A.smooth_l1_loss, A.huber_loss
    x, y, t = T(shape), T(shape), T(shape, positive=True)
    return choose(
        draw,
        Call(choose(draw, *losses).default, (x, y, reduction)),
        Call(A.binary_cross_entropy.default, (t, t, None, reduction)),
        Call(A.binary_cross_entropy_with_logits.default, (x, t, None, None, reduction)),
        Call(A.soft_margin_loss.default, (x, T(shape, below=3, low=1), reduction)),
        Call(A.kl_div.default, (x, t, reduction)),
        Call(A.kl_div.default, (x, y, reduction), {"log_target": True}),
        Call(A.poisson_nll_loss.default, (x, t, True, False, 1e-8, reduction)),
        Call(A.hinge_embedding_loss.default, (x, y, 0.5, reduction)),
        Call(A.margin_ranking_loss.default, (x, y, y, 0.5, reduction)),
    )


# -- elementwise -----------------------------------------------------------------------


@call
def pointwise(draw: Any) -> Call:
    shape = shape_of(draw, 0)
    other = tuple(1 if draw(st.booleans()) else s for s in shape)[
        draw(st.integers(0, len(shape))) :
    ]
    if draw(st.booleans()):
        target = choose(
            draw, A.gelu, A.silu, A.tanh, A.exp, A.sin, A.elu, A.softplus, A.mish, A.hardswish
        ).default
        return Call(target, (T(shape),))
    target = choose(
        draw, A.add.Tensor, A.mul.Tensor, A.sub.Tensor, A.logaddexp.default, A.maximum.default
    )
    return Call(target, (T(shape), T(other)) if draw(st.booleans()) else (T(other), T(shape)))


@call
def masks(draw: Any) -> Call:
    shape = shape_of(draw)
    mask = T(tuple(1 if draw(st.booleans()) else s for s in shape), boolean=True)
    return choose(
        draw,
        Call(A.where.self, (mask, T(shape), T(shape))),
        Call(A.where.ScalarOther, (mask, T(shape), 0.5)),
        Call(A.masked_fill.Scalar, (T(shape), mask, -1.5)),
        Call(A.relu.default, (T(shape),)),
        Call(A.clamp.default, (T(shape), -0.5, 0.5)),
        Call(A.to.dtype, (T(shape), torch.float32)),
    )


@call
def prelu(draw: Any) -> Call:
    shape = shape_of(draw, 2)
    return Call(A.prelu.default, (T(shape), P(choose(draw, 1, shape[1]))))


@call
def triangle(draw: Any) -> Call:
    shape = shape_of(draw, 2)
    return Call(choose(draw, A.tril, A.triu).default, (T(shape), draw(st.integers(-3, 3))))


@call
def created(draw: Any) -> Call:
    shape = list(shape_of(draw))
    f = {"dtype": torch.float64}
    return choose(
        draw,
        Call(A.zeros.default, (shape,), f),
        Call(A.ones.default, (shape,), f),
        Call(A.full.default, (shape, 2.5), f),
        Call(A.full_like.default, (T(tuple(shape)), 2.5)),
        Call(A.arange.default, (7,)),
        Call(A.arange.start_step, (2, 9, 3), f),
        Call(A.new_zeros.default, (T((2,)), shape)),
    )


@call
def dropout(draw: Any) -> Call:
    shape = shape_of(draw, 2)
    if draw(st.booleans()):
        return Call(A.feature_dropout.default, (T(shape), 0.4, True))
    return Call(A.dropout.default, (T(shape), choose(draw, 0.1, 0.5, 1.0), True))


@call
def drawn(draw: Any) -> Call:
    """Random numbers of a shape; of the first one, the first dimension is often that of the samples."""
    shape = list(shape_of(draw, 0))
    name = choose(draw, "rand", "randn", "randint", "low", "normal")
    double = {"dtype": torch.float64}
    if name == "randint":
        return Call(A.randint.default, (draw(st.integers(1, 9)), shape))
    if name == "low":
        return Call(A.randint.low, (-3, draw(st.integers(-2, 9)), shape), double)
    if name == "normal":
        return Call(A.normal.float_float, (1.5, 0.5, shape), double)
    return Call(getattr(A, name).default, (shape,), double)


@call
def drawn_like(draw: Any) -> Call:
    x = T(shape_of(draw, 0))
    name = choose(
        draw, "rand_like", "randn_like", "uniform", "normal_functional", "exponential", "multinomial",
        "randperm",
    )  # fmt: skip
    if draw(st.booleans()):
        return Call(A.randint_like.low_dtype, (x, 2, 7))
    if name == "multinomial":
        count, few = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        return Call(A.multinomial.default, (T((count, 5), positive=True), few, few == 1))
    if name == "randperm":
        return Call(A.randperm.default, (draw(sizes),))
    target = getattr(A, name).default
    bounds = {"uniform": (-1.0, 2.5), "normal_functional": (0.5, 2.0), "exponential": (1.5,)}
    return Call(target, (x, *bounds.get(name, ())))


@call
def created_from_numbers(draw: Any) -> Call:
    count = draw(st.integers(1, 6))
    name = choose(
        draw, "linspace", "logspace", "eye", "eye_m", "tril_indices", "hann_window", "fft_fftfreq"
    )
    double = {"dtype": torch.float64}
    if name in ("linspace", "logspace"):
        return Call(getattr(A, name).default, (-1.5, 2.0, count), double)
    if name == "eye_m":
        return Call(A.eye.m, (count, draw(st.integers(1, 6))), double)
    if name == "tril_indices":
        return Call(A.tril_indices.default, (count, count))
    return Call(getattr(A, name).default, (count,), double)


@call
def bernoulli(draw: Any) -> Call:
    shape = shape_of(draw, 0)
    x = T(shape, positive=True)
    form = choose(draw, "default", "p", "Tensor")
    if form == "default":
        return Call(A.bernoulli.default, (x,))
    if form == "p":
        return Call(A.bernoulli.p, (x, choose(draw, 0.0, 0.3, 1.0)))
    broadcast = tuple(choose(draw, size, 1) for size in shape)
    return Call(A.bernoulli.Tensor, (x, T(broadcast, positive=True)))


# -- movement --------------------------------------------------------------------------


@call
def permute(draw: Any) -> Call:
    shape = shape_of(draw)
    dims = draw(st.permutations(range(len(shape))))
    d0, d1 = (draw(st.integers(-len(shape), len(shape) - 1)) for _ in range(2))
    return choose(
        draw,
        Call(A.permute.default, (T(shape), dims)),
        Call(A.transpose.int, (T(shape), d0, d1)),
        Call(A.movedim.int, (T(shape), d0, d1)),
        Call(A.numpy_T.default, (T(shape),)),
    )


@call
def transposed_matrices(draw: Any) -> Call:
    shape = shape_of(draw, 2)
    x = T(shape, dtype=choose(draw, torch.float64, torch.complex128))
    return choose(
        draw,
        Call(choose(draw, A.mT, A.mH, A.adjoint).default, (x,)),
        Call(choose(draw, A.t, A.matrix_H).default, (x._replace(shape=shape[:2]),)),
    )


@call
def reshape(draw: Any) -> Call:
    factors = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))

    def grouped() -> tuple[int, ...]:
        shape, current = [], 1
        for factor in factors:
            current *= factor
            if draw(st.booleans()):
                shape.append(current)
                current = 1
        return (*shape, current)

    return Call(A.reshape.default, (T(grouped()), list(grouped())))


@call
def reshape_mixed(draw: Any) -> Call:
    """Shapes without common factors."""
    source, target = choose(
        draw, ((4, 6), (3, 8)), ((2, 4, 6), (2, 8, 3)), ((6, 4, 2), (4, 6, 2)), ((12,), (3, 4))
    )
    return Call(A.view.default, (T(source), list(target)))


@call
def squeezes(draw: Any) -> Call:
    shape = shape_of(draw, 1, 4, 2)
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    return choose(
        draw,
        Call(A.squeeze.default, (T(shape),)),
        Call(A.squeeze.dim, (T(shape), dim)),
        Call(A.unsqueeze.default, (T(shape), dim)),
        Call(A.flatten.using_ints, (T(shape), 0, -1)),
        Call(A.unflatten.int, (T((4, 6)), 1, [2, -1])),
    )


@call
def pixels(draw: Any) -> Call:
    r, c, h, w = (draw(st.integers(1, 3)) for _ in range(4))
    return choose(
        draw,
        Call(A.pixel_shuffle.default, (T((2, c * r * r, h, w)), r)),
        Call(A.pixel_unshuffle.default, (T((2, c, h * r, w * r)), r)),
    )


@call
def expand(draw: Any) -> Call:
    shape = shape_of(draw)
    source = tuple(1 if draw(st.booleans()) else s for s in shape)[
        draw(st.integers(0, len(shape) - 1)) :
    ]
    return choose(
        draw,
        Call(A.expand.default, (T(source), list(shape))),
        Call(A.broadcast_tensors.default, ([T(source), T(shape)],)),
        Call(A.repeat.default, (T(source), [2] * (len(shape) - len(source)) + [3] * len(source))),
        Call(A.repeat_interleave.self_int, (T(shape), 2, len(shape) - 1)),
    )


@call
def slices(draw: Any) -> Call:
    shape = shape_of(draw, 1, 3, 8)
    dim = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[dim] - 1))
    end = draw(st.integers(start + 1, shape[dim]))
    return choose(
        draw,
        Call(A.slice.Tensor, (T(shape), dim, start, end, draw(st.integers(1, 3)))),
        Call(A.select.int, (T(shape), dim, start)),
        Call(A.narrow.default, (T(shape), dim, start, end - start)),
        Call(A.split.Tensor, (T(shape), draw(st.integers(1, 3)), dim)),
        Call(A.chunk.default, (T(shape), draw(st.integers(1, 3)), dim)),
        Call(A.unbind.int, (T(shape), dim)),
    )


@call
def cat(draw: Any) -> Call:
    shape = shape_of(draw, 1, 3)
    dim = draw(st.integers(0, len(shape) - 1))
    lengths = [draw(sizes), *draw(st.lists(st.integers(0, 5), max_size=2))]
    parts = [T((*shape[:dim], length, *shape[dim + 1 :])) for length in lengths]
    return choose(
        draw,
        Call(A.cat.default, (parts, dim)),
        Call(A.stack.default, ([T(shape), T(shape)], dim)),
    )


@call
def scatter(draw: Any) -> Call:
    shape = shape_of(draw, 1, 3)
    dim = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[dim] - 1))
    end = draw(st.integers(start + 1, shape[dim]))
    part = (*shape[:dim], end - start, *shape[dim + 1 :])
    return choose(
        draw,
        Call(A.slice_scatter.default, (T(shape), T(part), dim, start, end)),
        Call(
            A.slice_scatter.default,
            (T(shape), T((*shape[:dim], -(-shape[dim] // 2), *shape[dim + 1 :])), dim, 0, None, 2),
        ),
        Call(
            A.select_scatter.default, (T(shape), T((*shape[:dim], *shape[dim + 1 :])), dim, start)
        ),
    )


@call
def pad(draw: Any) -> Call:
    n, c, h, w = 2, draw(sizes), draw(st.integers(3, 6)), draw(st.integers(3, 6))
    mode = choose(draw, "constant", "constant", "reflect", "replicate", "circular")
    pads = [draw(st.integers(-1, 2)) for _ in range(4)]
    value = [1.5] if mode == "constant" else []
    return Call(A.pad.default, (T((n, c, h, w)), pads, mode, *value))


@call
def rotations(draw: Any) -> Call:
    shape = shape_of(draw)
    dims = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    return choose(
        draw,
        Call(A.flip.default, (T(shape), dims)),
        Call(A.roll.default, (T(shape), [draw(st.integers(-6, 6)) for _ in dims], dims)),
        Call(A.roll.default, (T(shape), [draw(st.integers(-6, 6))])),
    )


# -- gathers ---------------------------------------------------------------------------


@call
def embedding(draw: Any) -> Call:
    v, c = draw(st.integers(2, 6)), draw(sizes)
    padding = choose(draw, -1, 0, v - 1)
    return Call(A.embedding.default, (P(v, c), T(shape_of(draw, 1, 3), below=v), padding))


@call
def indexed(draw: Any) -> Call:
    shape = shape_of(draw, 1, 3)
    dim = draw(st.integers(0, len(shape) - 1))
    index = T(shape_of(draw, 1, 2), below=shape[dim])
    rows = (
        [T((3, 1), below=shape[0]), T((1, 2), below=shape[-1])]
        if len(shape) == 2
        else [T((2,), below=shape[0])]
    )
    return choose(
        draw,
        Call(A.gather.default, (T(()), 0, T((), below=1))),
        Call(A.index_select.default, (T(()), 0, T((1,), below=1))),
        Call(A.index_select.default, (T(shape), dim, T((4,), below=shape[dim]))),
        Call(A.index.Tensor, (T(shape), [*[None] * dim, index])),
        Call(A.index.Tensor, (T(shape), rows)),
        Call(A.gather.default, (T(shape), dim, T(shape, below=shape[dim]))),
    )


# -- reductions ------------------------------------------------------------------------


@call
def reduction(draw: Any) -> Call:
    shape = shape_of(draw)
    dims = draw(
        st.lists(
            st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda d: d % len(shape)
        )
    )
    keep = draw(st.booleans())
    target = choose(draw, A.sum.dim_IntList, A.mean.dim)
    if draw(st.booleans()):
        return Call(choose(draw, A.sum, A.mean).default, (T(shape),))
    return Call(target, (T(shape), dims, keep))


@call
def variance(draw: Any) -> Call:
    shape = shape_of(draw, 0, 3)
    dims = draw(st.lists(st.integers(0, max(0, len(shape) - 1)), min_size=1, unique=True))
    target = choose(draw, A.var.correction, A.std.correction)
    return Call(
        target, (T(shape), dims), {"correction": choose(draw, 0, 1), "keepdim": draw(st.booleans())}
    )


@call
def extremes(draw: Any) -> Call:
    shape = shape_of(draw, 0)
    dim, keep = dim_of(draw, shape), draw(st.booleans())
    several = [dim, *(d for d in range(len(shape)) if d != dim % len(shape))][: draw(sizes)]
    x, holds = T(shape), T(shape, boolean=True)
    return choose(
        draw,
        Call(A.amax.default, (x, several, keep)),
        Call(A.amax.default, (x,)),
        Call(A.amin.default, (x, [], keep)),
        Call(choose(draw, A.max, A.min).dim, (x, dim, keep)),
        Call(choose(draw, A.max, A.min).default, (x,)),
        Call(choose(draw, A.max, A.min).other, (x, x)),
        Call(A.any.default, (holds,)),
        Call(A.all.dim, (holds, dim, keep)),
        Call(choose(draw, A.any, A.all).dims, (holds, choose(draw, several, None, []), keep)),
        Call(A.argmax.default, (x, dim, keep)),
        Call(A.argmin.default, (x, None, keep)),
        Call(A.argmax.default, (x,), {"keepdim": keep}),
    )


@call
def whole(draw: Any) -> Call:
    shape = shape_of(draw, 0)
    dim, keep = dim_of(draw, shape), draw(st.booleans())
    x = T(shape)
    return choose(
        draw,
        Call(choose(draw, A.cumsum, A.cumprod).default, (x, dim)),
        Call(A.cumsum.default, (x,), {"dim": dim, "dtype": torch.float64}),
        Call(choose(draw, A.cummax, A.cummin).default, (x, dim)),
        Call(A.logcumsumexp.default, (x, dim)),
        Call(A.sort.default, (x, dim, keep)),
        Call(A.sort.stable, (x,), {"stable": True, "dim": dim, "descending": keep}),
        Call(A.argsort.default, (x, dim, keep)),
        Call(A.argsort.stable, (x,), {"stable": True}),
        Call(A.topk.default, (x, 1, dim)),
        Call(A.prod.default, (x,)),
        Call(A.prod.dim_int, (x, dim, keep)),
        Call(A.linalg_vector_norm.default, (x, 2, [dim], keep)),
    )


# -- recurrent -------------------------------------------------------------------------


@call
def recurrent(draw: Any) -> Call:
    kind = choose(draw, "lstm", "gru", "rnn_tanh", "rnn_relu")
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    n, t, k, c = (draw(st.integers(1, 3)) for _ in range(4))
    layers, both = draw(st.integers(1, 2)), draw(st.booleans())
    biases, first = draw(st.booleans()), draw(st.booleans())
    ways = 2 if both else 1
    params: list[T] = []
    for layer in range(layers):
        for _ in range(ways):
            params += [P(gates * c, k if layer == 0 else c * ways), P(gates * c, c)]
            params += [P(gates * c), P(gates * c)] if biases else []
    state = T((layers * ways, n, c))
    x = T((n, t, k) if first else (t, n, k))
    states: Any = [state, state] if kind == "lstm" else state
    target = getattr(A, kind).input
    return Call(target, (x, states, params, biases, layers, 0.0, True, both, first))


# -- writes at positions, transforms, patches, distances, experts --------------------------


@call
def scatter_at(draw: Any) -> Call:
    shape = shape_of(draw, 1, 3)
    dim = dim_of(draw, shape)
    part = tuple(draw(st.integers(1, s)) for s in shape)  # of the positions
    count = draw(st.integers(1, shape[dim])) if draw(st.booleans()) else shape[dim]
    index = T((*shape[: dim % len(shape)], count, *shape[dim % len(shape) + 1 :]), below=shape[dim])
    index = choose(draw, index, T(part, below=shape[dim]))
    larger = T(tuple(s + draw(st.integers(0, 1)) for s in index.shape))
    reduce = choose(draw, "sum", "mean", "amax")
    rows = T((3,), below=shape[dim])
    source = T((*shape[: dim % len(shape)], 3, *shape[dim % len(shape) + 1 :]))
    return choose(
        draw,
        Call(A.scatter.value, (T(shape), dim, index, 2.5)),
        Call(A.scatter_add.default, (T(shape), dim, index, larger)),
        Call(
            A.scatter_reduce.two,
            (T(shape), dim, index, T(index.shape), reduce),
            {"include_self": draw(st.booleans())},
        ),
        Call(A.index_add.default, (T(shape), dim, rows, source), {"alpha": 2}),
        Call(A.index_fill.int_Scalar, (T(shape), dim, rows, 2.5)),
        Call(A.index_fill.int_Tensor, (T(shape), dim, rows, T(()))),
        Call(
            A.index_copy.default, (T(shape), dim, T((1,), below=shape[dim]), T(one_of(shape, dim)))
        ),
        Call(A.scatter.src, (T(shape), dim, T(one_of(shape, dim), below=shape[dim]), T(shape))),
    )


def one_of(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """The shape with one element along a dimension: no position is written twice."""
    return tuple(1 if d == dim % len(shape) else s for d, s in enumerate(shape))


@call
def index_put(draw: Any) -> Call:
    shape = shape_of(draw, 2, 3)
    dim = draw(st.integers(0, len(shape) - 1))
    x, row = T(shape), T((2, 3), below=shape[dim])
    target = (*shape[:dim], 2, 3, *shape[dim + 1 :])
    values = tuple(1 if draw(st.booleans()) else s for s in target)[draw(st.integers(0, 1)) :]
    pair = [T((3, 1), below=shape[0]), T((2,), below=shape[1])]
    mask = T(shape[: draw(st.integers(1, 2))], boolean=True)
    after = shape[len(mask.shape) :]
    add = draw(st.booleans())
    return choose(
        draw,
        Call(A.index_put.default, (x, [*[None] * dim, row], T(values), True)),
        Call(A.index_put.default, (x, pair, T((3, 2, *shape[2:])), True)),
        Call(A.index_put.default, (x, [T((), below=shape[0])], T(shape[1:]), add)),
        Call(A.index_put.default, (x, [mask], T(choose(draw, (), after, (1, *after))), add)),
    )


@call
def fourier(draw: Any) -> Call:
    shape = shape_of(draw, 2, 3, 6)
    dim, size = dim_of(draw, shape), choose(draw, None, 4)
    norm, z = choose(draw, None, "ortho"), T(shape, dtype=torch.complex128)
    pair = [dim, (dim + 1) % len(shape)] if dim >= 0 else [dim, (dim - 1) % -len(shape)]
    pair = pair if len({d % len(shape) for d in pair}) == 2 else [0, 1]
    signal, window = T((3, 12)), T((4,), positive=True)
    return choose(
        draw,
        Call(choose(draw, A.fft_fft, A.fft_ifft).default, (z, size, dim, norm)),
        Call(A.fft_rfft.default, (T(shape), size, dim, norm)),
        Call(A.fft_irfft.default, (z, 4, dim, norm)),
        Call(A.fft_fft2.default, (z, None, pair, norm)),
        Call(A.fft_rfft2.default, (T(shape), None, pair, norm)),
        Call(A.fft_irfft2.default, (z, [4, 4], pair, norm)),
        Call(A.fft_fftn.default, (z,)),
        Call(A.fft_fftn.default, (z, [4, 4])),
        Call(
            choose(draw, A.fft_fftshift, A.fft_ifftshift).default,
            (T(shape), choose(draw, None, pair)),
        ),
        Call(
            A.stft.default, (signal, 4, 2, 4, choose(draw, None, window)), {"return_complex": True}
        ),
    )


@call
def patches(draw: Any) -> Call:
    n, c = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, stride = ([draw(st.integers(1, 3)) for _ in "hw"] for _ in "ks")
    dilation, padding = (
        [draw(st.integers(1, 2)) for _ in "hw"],
        [draw(st.integers(0, 2)) for _ in "hw"],
    )
    size = [draw(st.integers(5, 7)) for _ in "hw"]
    count = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(size, padding, dilation, kernel, stride, strict=True)
    ]
    columns = T((n, c * math.prod(kernel), math.prod(count)))
    shape = shape_of(draw, 1, 3)
    dim = dim_of(draw, shape)
    window = draw(st.integers(1, shape[dim]))
    return choose(
        draw,
        Call(A.im2col.default, (T((n, c, *size)), kernel, dilation, padding, stride)),
        Call(A.im2col.default, (T((c, *size)), kernel, dilation, padding, stride)),
        Call(A.col2im.default, (columns, size, kernel, dilation, padding, stride)),
        Call(A.col2im.default, (T(columns.shape[1:]), size, kernel, dilation, padding, stride)),
        Call(A.unfold.default, (T(shape), dim, window, draw(st.integers(1, 3)))),
    )


@call
def distance(draw: Any) -> Call:
    m, r, k = draw(sizes), choose(draw, 1, 3, 27), draw(sizes)
    a = shape_of(draw, 0, 2)
    x = T((*(1 if draw(st.booleans()) else s for s in a), m, k))
    return Call(
        A.cdist.default, (x, T((*a, r, k)), choose(draw, 2.0, 1.0), choose(draw, None, 1, 2))
    )


@call
def complex_parts(draw: Any) -> Call:
    shape = shape_of(draw, 0, 3)
    return choose(
        draw,
        Call(A.view_as_complex.default, (T((*shape, 2)),)),
        Call(A.view_as_real.default, (T(shape, dtype=torch.complex128),)),
        Call(choose(draw, A.polar, A.complex).default, (T(shape), T(shape))),
    )


@call
def composites(draw: Any) -> Call:
    n, c = draw(sizes), draw(sizes)
    x, y, labels = T((n, c)), T((n, c)), T((n,), below=2)
    dim, reduction = draw(st.integers(-2, 1)), draw(st.integers(0, 2))
    return choose(
        draw,
        Call(A.cosine_similarity.default, (x, choose(draw, y, T((1, c))), dim)),
        Call(A.cosine_embedding_loss.default, (x, y, labels, 0.1, reduction)),
        Call(A.pairwise_distance.default, (x, y, choose(draw, 1.0, 2.0))),
        Call(A.triplet_margin_loss.default, (x, y, T((n, c)), 0.5)),
        Call(A.kron.default, (x, T((2, 3)))),
        Call(A.take_along_dim.default, (x, T((n, c), below=c), 1)),
        Call(A.linalg_norm.default, (x, None, [dim])),
    )


@call
def ctc(draw: Any) -> Call:
    t, n, c, s = draw(st.integers(5, 7)), draw(sizes), draw(st.integers(2, 4)), 3
    scores, targets = T((t, n, c), positive=True), T((n, s), below=c, low=1)
    lengths, target_lengths = T((n,), below=t + 1, low=4), T((n,), below=s + 1, low=1)
    lengths_of = (scores, targets, lengths, target_lengths, 0, draw(st.booleans()))
    return Call(torch.ops.raddle.ctc_losses.default, lengths_of)


@call
def experts(draw: Any) -> Call:
    t, k, c, e = draw(st.integers(1, 6)), draw(sizes), draw(sizes), draw(st.integers(1, 4))
    ends = T((e,), below=t + 1, ascending=True)
    return choose(
        draw,
        Call(
            torch.ops.raddle_test_calls.grouped_mm_fallback.default, (T((t, k)), P(e, k, c), ends)
        ),
        Call(A.histc.default, (T(shape_of(draw, 0, 3)), draw(st.integers(1, 5)), -1, 2)),
    )


@call
def opaque(draw: Any) -> Call:
    return choose(
        draw,
        Call(A.linalg_inv_ex.default, (T((3, 3)),)),
        Call(A.gradient.scalarint, (T((2, 3, 2, 3, 2, 2)),)),  # 36 dimensions in all
    )
