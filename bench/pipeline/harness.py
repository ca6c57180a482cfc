"""Two pipeline stages that sleep instead of computing, to measure the overhead of a runtime.

A stage (stage.cpp) takes a given time and sleeps for nearly all of it, so the core is free for transfers.
"""

# n: sample, k: narrow width, e: elements of a sample's activation

from __future__ import annotations

import pathlib
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.cpp_extension import load

NARROW = 8  # elements of a sample before the first and after the last stage
SAMPLES = 2  # of a micro-batch
STAGES = 2


def build() -> None:
    """Compiles the stage, where that was not done before."""
    source = pathlib.Path(__file__).with_name("stage.cpp")
    load("raddle_bench_stage", [str(source)], is_python_module=False)


@dataclass(frozen=True)
class Row:
    """One case: a schedule, the size of the activation and the times of a stage."""

    schedule: str  # gpipe | 1f1b
    megabytes: float
    microbatches: int = 8
    forward: float = 0.010  # seconds
    backward: float = 0.020

    @property
    def elements(self) -> int:
        """Of one sample's activation: a multiple of the narrow width."""
        return int(self.megabytes * 2**20 / 4 / SAMPLES) // NARROW * NARROW

    @property
    def ideal(self) -> float:
        """Seconds of a step if transfers took no time: both schedules have this bubble."""
        return (self.microbatches + STAGES - 1) * (self.forward + self.backward)


class Stage(nn.Module):
    """One stage: an operator that raddle does not know, with a parameter."""

    def __init__(self, width: int, row: Row) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.width, self.seconds = width, (row.forward, row.backward)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.raddle_bench.stage(x, self.weight, self.width, *self.seconds)
        return y


def model(row: Row) -> nn.Sequential:
    """x[n k] -> activation[n e] -> y[n k]."""
    return nn.Sequential(Stage(row.elements, row), Stage(NARROW, row))


def loss(y: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(y, target)


def batch(row: Row) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a whole step."""
    generator = torch.Generator().manual_seed(1)
    shape = (row.microbatches * SAMPLES, NARROW)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def calibrate(row: Row, repeats: int = 25) -> tuple[float, float]:
    """Shortens the sleeps so that a call takes exactly the given time; returns the seconds removed."""
    stage, (x, _) = model(row)[0], batch(row)
    x = x[:SAMPLES].requires_grad_()
    torch.ops.raddle_bench.set_leads(0.0, 0.0)
    beyond = []
    for _ in range(repeats):
        start = time.perf_counter()
        y = stage(x)
        middle = time.perf_counter()
        seed = y.detach()  # of the right size, and there
        again = time.perf_counter()
        torch.autograd.grad(y, [x, stage.weight], seed)
        end = time.perf_counter()
        beyond.append((middle - start - row.forward, end - again - row.backward))
    forward, backward = (statistics.median(seconds) for seconds in zip(*beyond, strict=True))
    torch.ops.raddle_bench.set_leads(forward, backward)
    return forward, backward


def set_whole(value: bool) -> None:
    """Whether stages really write and read activations (to check them) instead of sleeping."""
    torch.ops.raddle_bench.set_whole(value)


def calls() -> list[int]:
    """How often stages of this process ran forward and backward."""
    return list(torch.ops.raddle_bench.calls())
