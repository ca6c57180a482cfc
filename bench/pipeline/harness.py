"""Makes two pipeline stages that sleep instead of computing, to measure the overhead of a runtime.

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
    """A case: a schedule, the size of the activation and the times of a stage."""

    schedule: str  # "gpipe" or "1f1b"
    megabytes: float  # of a micro-batch's activation between the stages, in MiB
    microbatches: int = 8
    forward: float = 0.010  # seconds
    backward: float = 0.020

    @property
    def elements(self) -> int:
        """The elements of one sample's activation: a multiple of the narrow width."""
        return int(self.megabytes * 2**20 / 4 / SAMPLES) // NARROW * NARROW

    @property
    def ideal(self) -> float:
        """The seconds of a step if transfers took no time: both schedules have the same bubble."""
        return (self.microbatches + STAGES - 1) * (self.forward + self.backward)


class Stage(nn.Module):
    """A stage of one parameter and one operator (stage.cpp), which raddle treats as opaque."""

    def __init__(self, width: int, row: Row) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.width, self.seconds = width, (row.forward, row.backward)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.raddle_bench.stage(x, self.weight, self.width, *self.seconds)
        return y


def model(row: Row) -> nn.Sequential:
    """Returns two stages: x[n k] -> activation[n e] -> y[n k]."""
    return nn.Sequential(Stage(row.elements, row), Stage(NARROW, row))


def loss(y: Tensor, target: Tensor) -> Tensor:
    """Returns the mean squared error."""
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
    torch.ops.raddle_bench.set_leads(0.0, 0.0)  # seconds by which the two sleeps are shortened
    # Seconds by which forward and backward took longer than they should
    overruns = []
    for _ in range(repeats):
        start = time.perf_counter()
        y = stage(x)
        middle = time.perf_counter()
        seed = y.detach()  # a gradient of the right size, without the time to make one
        again = time.perf_counter()
        torch.autograd.grad(y, [x, stage.weight], seed)
        end = time.perf_counter()
        overruns.append((middle - start - row.forward, end - again - row.backward))
    forward, backward = (statistics.median(seconds) for seconds in zip(*overruns, strict=True))
    torch.ops.raddle_bench.set_leads(forward, backward)
    return forward, backward


def set_whole(value: bool) -> None:
    """Sets whether stages really write and read activations (to check them) instead of sleeping."""
    torch.ops.raddle_bench.set_whole(value)


def calls() -> list[int]:
    """Returns how often stages of this process ran forward and backward."""
    return list(torch.ops.raddle_bench.calls())
