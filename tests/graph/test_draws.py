"""Random numbers of the graph: their distributions, their letters, and captured stochastic depth.

That boxes of these operators equal the whole is in test_ops.py, that torch.compile changes nothing in
tests/runtime/test_compiled_kinds.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tilings import random_tiles
from torch import Tensor, nn

from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.interpret import interpret
from raddle.graph.ops.draws import Distribution, draw
from raddle.graph.ops.random import random_key, stream_of
from raddle.graph.supervised import supervised
from raddle.verification.substitutes import Substitutes

SAMPLES = 6
MEAN_SQUARE = supervised(lambda y: y.square().mean(), targets=0)
# distribution, parameters, mean, variance
MOMENTS = [
    (Distribution.UNIFORM, (0.0, 1.0), 0.5, 1 / 12),
    (Distribution.UNIFORM, (-2.0, 4.0), 1.0, 3.0),
    (Distribution.NORMAL, (0.0, 1.0), 0.0, 1.0),
    (Distribution.NORMAL, (3.0, 0.5), 3.0, 0.25),
    (Distribution.EXPONENTIAL, (2.0, 0.0), 0.5, 0.25),
    (Distribution.BERNOULLI, (0.2, 0.0), 0.2, 0.16),
    (Distribution.INTEGERS, (0, 10), 4.5, 8.25),
    (Distribution.INTEGERS, (-3, 2), -1.0, 2.0),
]
ROWS, COLUMNS = 400, 500


def numbers(
    distribution: Distribution,
    parameters: tuple[float, float],
    seed: int = 0,
    stream: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    key = random_key(torch.tensor(seed), stream_of(stream))
    return draw(distribution, parameters, dtype, Box.full((ROWS, COLUMNS)), (ROWS, COLUMNS), key)


@pytest.mark.parametrize(("distribution", "parameters", "mean", "variance"), MOMENTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_mean_and_variance(
    distribution: Distribution,
    parameters: tuple[float, float],
    mean: float,
    variance: float,
    dtype: torch.dtype,
) -> None:
    """Of all numbers, of rows and of columns: within 5 standard errors (rows and columns: 6)."""
    for seed in range(3):
        x = numbers(distribution, parameters, seed, stream=seed, dtype=dtype).double()
        rounding = 2**-9 if dtype == torch.float16 else 0.0
        deviation = math.sqrt(variance)
        assert abs(x.mean() - mean) < 5 * deviation / math.sqrt(x.numel()) + rounding
        # The fourth moment of these distributions is at most 9 times the squared variance.
        assert abs(x.var() / variance - 1) < 5 * math.sqrt(8 / x.numel()) + rounding
        for along in (0, 1):
            means = x.mean(along)
            assert (means - mean).abs().max() < 6 * deviation / math.sqrt(x.shape[along]) + rounding


def test_ranges() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        uniform = numbers(Distribution.UNIFORM, (0.0, 1.0), dtype=dtype)
        assert uniform.min() >= 0
        assert uniform.max() < 1
        assert numbers(Distribution.NORMAL, (0.0, 1.0), dtype=dtype).isfinite().all()
    integers = numbers(Distribution.INTEGERS, (-3, 2), dtype=torch.int64)
    assert integers.unique().tolist() == [-3, -2, -1, 0, 1]
    assert not numbers(Distribution.BERNOULLI, (0.0, 0.0)).any()
    assert numbers(Distribution.BERNOULLI, (1.0, 0.0)).all()


def test_float32_has_the_numbers_of_float64() -> None:
    """So a model decides the same in float32 and in its float64 twin."""
    for distribution in (Distribution.UNIFORM, Distribution.BERNOULLI):
        double = numbers(distribution, (0.0 if distribution is Distribution.UNIFORM else 0.3, 1.0))
        single = numbers(
            distribution,
            (0.0 if distribution is Distribution.UNIFORM else 0.3, 1.0),
            dtype=torch.float32,
        )
        assert torch.equal(single.double(), double)


def test_streams_and_steps_are_independent() -> None:
    """Numbers of two streams, and of two seeds, have no correlation."""
    first = numbers(Distribution.NORMAL, (0.0, 1.0))
    for other in (
        numbers(Distribution.NORMAL, (0.0, 1.0), stream=1),
        numbers(Distribution.NORMAL, (0.0, 1.0), seed=1),
        numbers(Distribution.NORMAL, (0.0, 1.0), seed=1_000_003),
        first.roll(1, 0),
        first.roll(1, 1),
    ):
        assert abs((first * other).mean()) < 5 / math.sqrt(first.numel())


# -- capture ---------------------------------------------------------------------------


def timm_drop_path(x: Tensor, p: float) -> Tensor:
    mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - p)
    return x * mask.div_(1 - p)


def torchvision_stochastic_depth(x: Tensor, p: float) -> Tensor:
    noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype).bernoulli_(1 - p)
    return x * noise.div_(1 - p)


def transformers_drop_path(x: Tensor, p: float) -> Tensor:
    keep = 1 - p + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype)
    return x.div(1 - p) * keep.floor_()


def noise_like(x: Tensor, p: float) -> Tensor:
    return x + p * torch.randn_like(x) + torch.rand_like(x) * torch.zeros_like(x).uniform_(0, p)


def gumbel(x: Tensor, p: float) -> Tensor:
    return (x - torch.empty_like(x).exponential_().log()).div(1 + p).softmax(-1)


def masked_by_itself(x: Tensor, p: float) -> Tensor:
    return x * torch.bernoulli(x.sigmoid()) + torch.bernoulli(torch.full_like(x, p))


def unused_numbers(x: Tensor, p: float) -> Tensor:
    torch.rand([])
    x = timm_drop_path(x, p)
    torch.rand_like(x)
    return nn.functional.dropout(x, p) + torch.rand_like(x)


def masked_positions(x: Tensor, p: float) -> Tensor:  # as masked autoencoders choose patches
    chosen = torch.multinomial(torch.ones(x.shape[:2]), 1, replacement=False)
    order = torch.randperm(x.shape[-1])
    return x[torch.arange(len(x)).unsqueeze(1), chosen][..., order].expand_as(x) * p + x


FUNCTIONS = [
    timm_drop_path, torchvision_stochastic_depth, transformers_drop_path, noise_like, gumbel,
    masked_by_itself, unused_numbers, masked_positions,
]  # fmt: skip


class Net(nn.Module):
    def __init__(self, function: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.function(self.first(x), 0.4)
        return self.second(self.function(x, 0.3))


def captured(function: Callable[[Tensor, float], Tensor]) -> tuple[Graph, Net, Tensor]:
    torch.manual_seed(0)
    model, x = Net(function).double(), torch.randn(SAMPLES, 2, 5, dtype=torch.float64)
    return capture(model, [x], MEAN_SQUARE), model, x


@pytest.mark.parametrize("function", FUNCTIONS)
def test_step_equals_the_module(function: Callable[[Tensor, float], Tensor]) -> None:
    """With raddle's numbers in the place of torch's, whole and under random tilings."""
    graph, model, x = captured(function)
    assert not graph.opaque_ops
    plain = copy.deepcopy(model)
    with Substitutes(graph, 5) as substitutes:
        expected = plain(x).square().mean()
    substitutes.finish()
    expected_gradients = torch.autograd.grad(expected, list(plain.parameters()))

    @given(st.integers(0, 1000))
    def check(tiling: int) -> None:
        tensors = {"x": x, **dict(model.named_parameters())}
        for tiles in ({}, random_tiles(graph, tiling)):
            loss: Any = interpret(graph, tensors, seed=5, tiles=tiles)[graph.loss or ""]
            torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            torch.testing.assert_close(gradients, expected_gradients, rtol=1e-9, atol=1e-12)

    check()


@pytest.mark.parametrize("function", FUNCTIONS[:4])
def test_numbers_for_samples_have_the_sample_dimension(function: Any) -> None:
    graph, _, _ = captured(function)
    drawn = [op for op in graph.ops if op.kind in ("draw", "bernoulli")]
    assert len(drawn) == 2 * (3 if function is noise_like else 1)
    assert all(graph.dim_kinds(op)[0] == "S" for op in drawn)


def test_another_batch_has_other_numbers() -> None:
    graph, _, _ = captured(timm_drop_path)
    assert [op.space.dims[0].size for op in graph.for_batch(2).ops if op.kind == "draw"] == [2, 2]
