"""Dropout of eager and of compiled functions, on the CPU and on a GPU where there is one.

Native dropout of attention has masks with the right mean and variance, gradients that are right in the
mean, and bits that seed and plan fix. Exact masks have the same bits wherever they are computed.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timeouts import HANG
from torch import Tensor, nn

import raddle
from raddle.graph.supervised import supervised
from raddle.program.lower import lower
from raddle.runtime.execution.compiled_functions import CompiledFunctions
from raddle.runtime.trainer import Trainer
from raddle.transport.join import join

P = 0.25  # probability of dropout
N, H, T = 2, 4, 32  # samples, heads, queries and keys
STEPS = 300
PLACES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
BACKENDS = [None, "aot_eager"]  # of torch.compile; None: functions are not compiled
PRECISIONS = ["float32", "bf16"]

Gradients = dict[str, Tensor]  # by name, on the CPU


class Recorder(torch.optim.SGD):
    """Keeps the gradients of each step, and leaves the parameters as they are."""

    def __init__(self, pairs: Any, gradients: list[Gradients]) -> None:
        named = list(pairs)
        self.names, self.gradients = [name for name, _ in named], gradients
        super().__init__(named, lr=1.0)

    def step(self, closure: Any = None) -> None:
        tensors = [p.grad for group in self.param_groups for p in group["params"]]
        self.gradients.append(
            {n: t.detach().cpu().clone() for n, t in zip(self.names, tensors, strict=True)}
        )


def loss(y: Tensor) -> Tensor:
    return y.float().sum()


def gradients_of(
    model: nn.Module, x: Tensor, place: str, backend: str | None, *, steps: int = 1, seed: int = 3,
    recompute: bool = False, **settings: Any,
) -> list[Gradients]:  # fmt: skip
    """The gradients of some steps on one device. settings: of the plan."""
    torch.compiler.reset()
    device, result = torch.device(place), list[Gradients]()
    graph = raddle.capture(model, (x,), supervised(loss, targets=0))
    plan = raddle.plan(graph, cluster="local:1", method="data").plan
    blocks = (tuple(op.name for op in graph.ops[:-1]),) if recompute else ()
    program = lower(graph, replace(plan, recompute=blocks, **settings))
    functions = CompiledFunctions("default", backend=backend) if backend else CompiledFunctions()
    trainer = Trainer(
        model, program, lambda pairs: Recorder(pairs, result), join(device, None, HANG), device,
        loss=supervised(loss, targets=0), functions=functions, seed=seed,
    )  # fmt: skip
    for _ in range(steps):
        trainer.step((x.to(device),))
    trainer.close()
    if backend:
        assert functions.compiled
    return result


class Masks(nn.Module):
    """The gradient of `w` is the result of attention, which shows its mask: scores are 0, values the unit
    matrix. So each result is 0, or one over the number of keys and over the share that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(N, H, T, T))

    def forward(self, x: Tensor) -> Tensor:
        q = x * 0.0
        return F.scaled_dot_product_attention(q, q, x, dropout_p=P) * self.w


class Layers(nn.Module):
    """Two layers of causal attention with dropout, and dropout of their results: [n t c] -> [n t c]."""

    def __init__(self, layers: int = 2, p: float = P, width: int = 16) -> None:
        super().__init__()
        self.p, self.drop = p, nn.Dropout(p)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in qkv(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
            x = x + self.drop(out(y.transpose(1, 2).flatten(2)))
        return x


def network(layers: int = 2) -> tuple[Layers, Tensor]:
    torch.manual_seed(0)
    return Layers(layers), torch.randn(4, 8, 16)


def same(one: list[Gradients], other: list[Gradients]) -> bool:
    """Whether all gradients are equal, bit for bit."""
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_native_masks_have_the_right_mean_and_variance(
    place: str, backend: str | None, precision: str
) -> None:
    x = torch.eye(T).expand(N, H, T, T).contiguous()
    steps = gradients_of(Masks(), x, place, backend, steps=2, precision=precision)
    masks = [step["w"] * T * (1 - P) for step in steps]
    deviation = (P * (1 - P)) ** 0.5
    for mask in masks:
        assert torch.all((mask.abs() < 0.02) | ((mask - 1).abs() < 0.02))
        assert mask.mean().item() == pytest.approx(1 - P, abs=5 * deviation / mask.numel() ** 0.5)
        for dim in (-1, -2):  # means over rows and columns vary as those of independent elements
            spread = mask.mean(dim).std().item()
            assert spread == pytest.approx(deviation / T**0.5, rel=0.3)
    for one, other in [(masks[0], masks[1]), (masks[0][0], masks[0][1])]:  # steps, and samples
        assert (one * other).mean().item() == pytest.approx((1 - P) ** 2, abs=0.05)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_native_gradients_are_right_in_the_mean(
    place: str, backend: str | None, precision: str
) -> None:
    """The loss is linear in the weights of one attention: its mean gradient is that without dropout."""
    model, x = network(layers=1)
    steps = gradients_of(model, x, place, backend, steps=STEPS, precision=precision)
    reference = Layers(layers=1, p=0.0)
    reference.load_state_dict(model.state_dict())
    reference(x).sum().backward()
    rounding = 1e-5 if precision == "float32" else 1e-2
    for name, parameter in reference.named_parameters():
        expected = parameter.grad
        assert expected is not None
        gradients = torch.stack([step[name] for step in steps])
        error = gradients.std(0) / STEPS**0.5 + rounding * expected.abs().max() + 1e-5
        assert ((gradients.mean(0) - expected).abs() / error).max() < 5, name
        if "qkv" in name:  # dropout changes single gradients much
            assert gradients.std(0).max() > 0.05 * expected.abs().max()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dropout", ["native", "exact"])
def test_seed_and_plan_fix_the_bits_also_if_recomputed(
    place: str, backend: str | None, precision: str, dropout: str
) -> None:
    model, x = network()
    settings = {"steps": 3, "precision": precision, "dropout": dropout}
    states = gradients_of(model, x, place, backend, **settings, seed=5)
    torch.manual_seed(1)
    assert same(states, gradients_of(model, x, place, backend, **settings, seed=5))
    assert not same(states, gradients_of(model, x, place, backend, **settings, seed=6))
    recomputed = gradients_of(model, x, place, backend, **settings, seed=5, recompute=True)
    assert same(states, recomputed)


class Elementwise(nn.Module):
    """The gradient of `w` is the mask of an elementwise dropout, divided by the share that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(N, H, T))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, P) * self.w


def elementwise_masks(place: str, backend: str | None) -> list[Gradients]:
    return gradients_of(Elementwise(), torch.ones(N, H, T), place, backend, steps=2)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_elementwise_masks_have_the_same_bits_everywhere(place: str, backend: str | None) -> None:
    assert same(elementwise_masks(place, backend), elementwise_masks("cpu", None))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("place", PLACES)
def test_compiled_dropout(place: str) -> None:
    """As the tests above, with torch.compile's own backend."""
    assert same(elementwise_masks(place, "inductor"), elementwise_masks("cpu", None))
    test_native_masks_have_the_right_mean_and_variance(place, "inductor", "bf16")
    test_native_gradients_are_right_in_the_mean(place, "inductor", "bf16")
    test_seed_and_plan_fix_the_bits_also_if_recomputed(place, "inductor", "bf16", "native")
