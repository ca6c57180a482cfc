"""In bfloat16, raddle's gradients are as near to those of float64 as plain PyTorch's, compiled or not.

Where there is a GPU, they are compared there too.
"""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from timeouts import HANG
from torch import Tensor, nn

import raddle
from raddle.graph.supervised import supervised
from raddle.plans.precision import read_precision
from raddle.program.lower import lower
from raddle.runtime.execution.compiled_functions import CompiledFunctions, NotCompiled
from raddle.runtime.trainer import Trainer, warn_of_emulation
from raddle.transport.join import join

SEEDS = range(4)
MOST = 1.1  # by which the error may exceed plain PyTorch's


class Layer(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            t.unflatten(-1, (2, -1)).transpose(1, 2)
            for t in self.project(self.norm(x)).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        return x + self.mlp(x)


def transformer() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(Layer(32), Layer(32), nn.Flatten(), nn.Linear(8 * 32, 5))
    return model, torch.randn(16, 8, 32)


def convolutions() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.GELU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16, 5),
    )  # fmt: skip
    return model, torch.randn(16, 3, 12, 12)


class Gated(nn.Module):
    """A layer of a gated feed-forward network with RMS norm, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def gated() -> tuple[nn.Module, Tensor]:
    layers = nn.Embedding(50, 32), Gated(32), Gated(32), nn.RMSNorm(32)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 32, 5)), torch.randint(50, (16, 8))


class Bottleneck(nn.Module):
    """A residual block with a grouped convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.block(x))


def bottlenecks() -> tuple[nn.Module, Tensor]:
    blocks = nn.Conv2d(3, 16, 3, stride=2), Bottleneck(16), Bottleneck(16)
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
    return nn.Sequential(*blocks, *ends), torch.randn(16, 3, 13, 13)


Make = Callable[[], tuple[nn.Module, Tensor]]
MODELS: list[Make] = [transformer, convolutions, gated, bottlenecks]
PLACES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def plain_gradients(
    model: nn.Module, x: Tensor, y: Tensor, *, autocast: bool, backend: str | None = None
) -> Tensor:
    """backend: of torch.compile; None: the model is not compiled."""
    compiled = backend is not None
    run = (
        torch.compile(model, fullgraph=True, dynamic=False, backend=backend) if compiled else model
    )
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=autocast):
        loss = nn.functional.cross_entropy(run(x), y)
    loss.backward()
    gradients = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
    return torch.cat(gradients).cpu()


def raddle_gradients(model: nn.Module, x: Tensor, y: Tensor, *, backend: str | None) -> Tensor:
    """The gradients, as the change of the parameters in a step of SGD with a learning rate of 1."""
    loss, place = nn.functional.cross_entropy, x.device
    graph = raddle.capture(model, (x, y), supervised(loss))
    plan = raddle.plan(graph, cluster="local:1", method="data").plan
    program = lower(graph, replace(plan, precision="bf16"))
    functions = CompiledFunctions("default", backend=backend) if backend else CompiledFunctions()
    trainer = Trainer(
        model, program, lambda p: torch.optim.SGD(p, lr=1.0), join(place, None, HANG), place,
        loss=loss, functions=functions,
    )  # fmt: skip
    before = trainer.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiled)
        trainer.step((x, y))
    after = trainer.state_dict()
    trainer.close()
    names = [name for name, _ in model.named_parameters()]
    changes = [(before[n].double() - after[n].double()).flatten() for n in names]
    return torch.cat(changes).cpu()


def check(make: Make, place: str, backend: str | None) -> None:
    """Compares the squares of the errors, summed over seeds: one gradient's error is partly luck."""
    torch.compiler.reset()
    plain_error = raddle_error = 0.0
    for seed in SEEDS:
        torch.manual_seed(seed)
        model, x = make()
        model, x, y = model.to(place), x.to(place), torch.randint(5, (len(x),)).to(place)
        in_double = x.double() if x.is_floating_point() else x
        exact = plain_gradients(copy.deepcopy(model).double(), in_double, y, autocast=False)
        plain = plain_gradients(copy.deepcopy(model), x, y, autocast=True, backend=backend)
        ours = raddle_gradients(copy.deepcopy(model), x, y, backend=backend)
        plain_error += float((plain - exact).square().sum())
        raddle_error += float((ours - exact).square().sum())
        assert float((ours - exact).norm()) < 0.1 * float(exact.norm())
    assert raddle_error**0.5 <= MOST * plain_error**0.5
    assert plain_error > 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_as_precise_as_plain(make: Make, place: str, backend: str | None) -> None:
    check(make, place, backend)


def test_a_gpu_without_bfloat16_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.warns(UserWarning, match="this GPU only emulates bfloat16"):
        warn_of_emulation(read_precision("bf16"), torch.device("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_emulation(read_precision("fp16"), torch.device("cuda"))
        warn_of_emulation(read_precision("bf16"), torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", MODELS)
def test_as_precise_as_plain_compiled(make: Make, place: str) -> None:
    check(make, place, "inductor")
