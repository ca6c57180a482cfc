"""Operators that draw random numbers: rand, randn, randint, bernoulli and their relatives.

    draw        y[n a..] = seed[]              the same distribution for every element
    bernoulli   y[a..] = p[a..], seed[]        1 with the probability p of the element, else 0

As with dropout (random.py), a number is a hash of the seed and of the position of its element in the whole
tensor. So it does not depend on the plan, and such operators can be split: the masks of stochastic depth,
which has one number for each sample, are split as the samples are.

As in every file of ops/: index notation is explained in graph/space.py; `_x_kernel(tile)` returns the
function that computes one tile, which is a box of the operator on a device; `_translate_x` turns an ATen
call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` an operator whose name ends in `suffix`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Value
from raddle.graph.letters import ALPHABET, unique
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.pointwise import pointwise_notation
from raddle.graph.ops.random import next_stream, random_bits, random_key, second_key
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten
# The random bits of a number between 0 and 1: as many as the type has, at most those of float32. So the
# numbers of a model in float32 and in float64 are the same.
_BITS = {torch.float16: 11, torch.bfloat16: 8}
_MOST_BITS = 24


class Distribution(Enum):
    """A distribution of random numbers, with the meaning of its two parameters."""

    UNIFORM = "uniform"  # low, high: from low to high, without high
    NORMAL = "normal"  # mean, standard deviation
    EXPONENTIAL = "exponential"  # rate, nothing
    BERNOULLI = "bernoulli"  # probability of 1, nothing
    INTEGERS = "integers"  # low, high: integers from low to high - 1

    def __repr__(self) -> str:
        return self.value


def unit_interval(
    box: Box, shape: Sequence[int], key: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Returns uniform numbers from 0 to 1, without 1, for a box of a tensor of this shape."""
    count = _BITS.get(dtype, _MOST_BITS)
    bits = (random_bits(box, shape, key) >> (32 - count)) & ((1 << count) - 1)
    scale: float = 2.0**-count
    return bits.to(dtype) * scale


def draw(
    distribution: Distribution, parameters: tuple[float, float], dtype: torch.dtype,
    box: Box, shape: Sequence[int], key: Tensor,
) -> Tensor:  # fmt: skip
    """Returns random numbers for a box of a tensor of this shape; key: see `random_key`."""
    first, second = parameters
    if distribution is Distribution.BERNOULLI:
        return (unit_interval(box, shape, key) < first).to(dtype)
    if distribution is Distribution.INTEGERS:
        bits = random_bits(box, shape, key).to(torch.int64) & 0xFFFFFFFF
        return (bits % int(second - first) + int(first)).to(dtype)
    if distribution is Distribution.UNIFORM:
        return unit_interval(box, shape, key, dtype) * (second - first) + first
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    # 1 - u is never 0, of which there is no logarithm.
    exponential = -torch.log(1 - unit_interval(box, shape, key, wide))
    if distribution is Distribution.EXPONENTIAL:
        return (exponential / first).to(dtype)
    # The Box-Muller transform of two uniform numbers
    angle = unit_interval(box, shape, second_key(key), wide) * (2 * math.pi)
    normal = torch.sqrt(2 * exponential) * torch.cos(angle)
    return (normal * second + first).to(dtype)


def _draw_notation(sig: Signature) -> str:
    return f"y[{' '.join(sig.attrs['letters'])}] = seed[]"


def _draw_kernel(tile: OperatorTile) -> Kernel:
    attrs, dtype, device = tile.attrs, tile.op.dtypes[0], tile.device
    distribution, parameters = attrs["distribution"], attrs["parameters"]
    box, shape = tile.box, tuple(d.size for d in tile.op.space.dims)

    def run(seed: Tensor, stream: Tensor | int = attrs["stream"]) -> Tensor:
        key = random_key(seed, stream).to(device)
        return draw(distribution, parameters, dtype, box, shape, key)

    return run


def _bernoulli_kernel(tile: OperatorTile) -> Kernel:
    box, shape = tile.box, tuple(d.size for d in tile.op.space.dims)
    stream_number, dtype = tile.attrs["stream"], tile.op.dtypes[0]

    def run(p: Tensor, seed: Tensor, stream: Tensor | int = stream_number) -> Tensor:
        uniform = unit_interval(box, shape, random_key(seed, stream).to(p.device))
        return (uniform < p).to(dtype)

    return run


declare(
    "draw",
    _draw_notation,
    _draw_kernel,
    Traits(SavedTensors.NOTHING, is_cheap=True),
    flops_per_point=10,
    tensor_attr="stream",
)
declare(
    "bernoulli",
    pointwise_notation,
    _bernoulli_kernel,
    Traits(SavedTensors.NOTHING, is_cheap=True),
    flops_per_point=10,
    tensor_attr="stream",
)


def _letters(b: Builder, shape: Sequence[int], like: Value | None) -> tuple[str, ...]:
    """Returns the letters of a tensor that is made from nothing but its shape.

    They are those of a tensor of the same shape, if the call has one. Otherwise the first dimension is the
    sample dimension if it has the size of the batch: stochastic depth draws numbers of shape [batch, 1, 1].
    """
    if like is not None and like.shape == tuple(shape) and "n" in like.letters:
        return tuple(unique(like.letters))
    others = unique(ALPHABET[: len(shape)], "n")
    batches = {
        v.shape[v.letters.index("n")]
        for v in b.values.values()
        if v.role == "input" and "n" in v.letters
    }
    return ("n", *others[1:]) if shape and shape[0] in batches else tuple(others)


def add_draw(
    b: Builder, shape: Sequence[int], dtype: torch.dtype | None, distribution: Distribution,
    first: float = 0.0, second: float = 1.0, *, like: Value | None = None,
) -> Any:  # fmt: skip
    """Adds random numbers of a shape; first, second: the parameters of the distribution."""
    dtype, shape = dtype or torch.get_default_dtype(), tuple(shape)
    if dtype.is_complex or not all(isinstance(v, (int, float)) for v in (first, second)):
        raise NotSplittable
    attrs = {
        "distribution": distribution, "parameters": (first, second), "stream": next_stream(b),
        "letters": _letters(b, shape, like),
    }  # fmt: skip
    return b.emit("draw", [b.seed()], [(shape, dtype)], attrs, suffix=distribution.value)


def _refuse_generator(generator: Any) -> None:
    """A generator of the user's has a state, which no hash can continue."""
    if generator is not None:
        raise NotSplittable


# -- numbers of a given shape ----------------------------------------------------------


@aten("rand")
def _translate_rand(b: Builder, shape: Sequence[int], *, dtype: torch.dtype | None = None) -> Any:
    return add_draw(b, shape, dtype, Distribution.UNIFORM)


@aten("randn")
def _translate_randn(b: Builder, shape: Sequence[int], *, dtype: torch.dtype | None = None) -> Any:
    return add_draw(b, shape, dtype, Distribution.NORMAL)


@aten("randint")
def _translate_randint(b: Builder, *args: Any, dtype: torch.dtype | None = torch.int64) -> Any:
    low, high, shape = args if len(args) == 3 else (0, *args)
    return add_draw(b, shape, dtype or torch.int64, Distribution.INTEGERS, low, high)


@aten("normal")
def _translate_normal(
    b: Builder, mean: Any, std: Any = 1.0, size: Sequence[int] | None = None, *,
    generator: Any = None, dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    _refuse_generator(generator)
    if size is None:  # the mean or the standard deviation is a tensor
        raise NotSplittable
    return add_draw(b, size, dtype, Distribution.NORMAL, mean, std)


# -- numbers of the shape of a tensor --------------------------------------------------


@aten("rand_like")
def _translate_rand_like(b: Builder, x: Value, *, dtype: torch.dtype | None = None) -> Any:
    return add_draw(b, x.shape, dtype or x.dtype, Distribution.UNIFORM, like=x)


@aten("randn_like")
def _translate_randn_like(b: Builder, x: Value, *, dtype: torch.dtype | None = None) -> Any:
    return add_draw(b, x.shape, dtype or x.dtype, Distribution.NORMAL, like=x)


@aten("randint_like")
def _translate_randint_like(
    b: Builder, x: Value, *bounds: Any, dtype: torch.dtype | None = None
) -> Any:
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return add_draw(b, x.shape, dtype or x.dtype, Distribution.INTEGERS, low, high, like=x)


@aten("uniform")
def _translate_uniform(
    b: Builder, x: Value, low: float = 0.0, high: float = 1.0, *, generator: Any = None
) -> Any:
    _refuse_generator(generator)
    return add_draw(b, x.shape, x.dtype, Distribution.UNIFORM, low, high, like=x)


@aten("normal_functional")
def _translate_normal_functional(
    b: Builder, x: Value, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Any:
    _refuse_generator(generator)
    return add_draw(b, x.shape, x.dtype, Distribution.NORMAL, mean, std, like=x)


@aten("exponential")
def _translate_exponential(
    b: Builder, x: Value, rate: float = 1.0, *, generator: Any = None
) -> Any:
    _refuse_generator(generator)
    return add_draw(b, x.shape, x.dtype, Distribution.EXPONENTIAL, rate, like=x)


@aten("bernoulli")
def _translate_bernoulli(b: Builder, x: Value, p: Any = None, *, generator: Any = None) -> Any:
    _refuse_generator(generator)
    if p is not None and not isinstance(p, Value):
        return add_draw(b, x.shape, x.dtype, Distribution.BERNOULLI, p, like=x)
    probabilities = x if p is None else b.call(A.expand.default, p, list(x.shape))
    # Drawn numbers have no gradient with respect to their probabilities.
    probabilities = b.call(A.detach.default, probabilities)
    attrs = {"stream": next_stream(b)}
    operands = [probabilities, b.seed()]
    return b.emit("bernoulli", operands, [(x.shape, x.dtype)], attrs)


# -- positions that are drawn ----------------------------------------------------------


@aten("multinomial")
def _translate_multinomial(
    b: Builder, x: Value, count: int, replacement: bool = False, *, generator: Any = None
) -> Any:
    """The positions of the largest quotients of probability and exponential number, as torch does it."""
    _refuse_generator(generator)
    if replacement and count > 1:
        raise NotSplittable
    noise = add_draw(b, x.shape, x.dtype, Distribution.EXPONENTIAL, 1.0, like=x)
    quotients = b.call(A.div.Tensor, b.call(A.detach.default, x), noise)
    return b.call(A.topk.default, quotients, count, -1)[1]


@aten("randperm")
def _translate_randperm(
    b: Builder, count: int, *, generator: Any = None, dtype: torch.dtype | None = None
) -> Any:
    _refuse_generator(generator)
    order = b.call(A.argsort.default, add_draw(b, [count], torch.float64, Distribution.UNIFORM))
    return b.call(A.to.dtype, order, dtype or torch.int64)
