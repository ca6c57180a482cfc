"""Two stages that sleep: what a pipeline's runtime costs, apart from what it computes.

A stage takes exactly as long as it says, nearly all of it asleep, which leaves the core to the transfers. Its
activation (its gradient, going back) is memory that exists since before: making 32 MB anew would cost
more than a stage sleeps, and that is nobody's transfer. Blocks of an activation are constant, so a stage
writes and reads one element of each; with `WHOLE` all of it is written and read, to check what arrived.
"""

# n: sample, k: narrow width, e: elements of a sample's activation

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NARROW = 8  # elements of a sample before the first and after the last stage
SAMPLES = 2  # of a micro-batch
CALLS = {"forward": 0, "backward": 0}  # how often stages of this process ran
WHOLE = [False]  # whether activations are written and read whole, rather than asleep
LATE = 0.5e-3  # seconds by which a sleep may end late
RING = 10  # activations of one size in turn; a step has 8 micro-batches

_RINGS: dict[tuple[int, int], deque[Tensor]] = {}


@dataclass(frozen=True)
class Row:
    """What is measured: a schedule, the activation's size and the times of a stage."""

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
        """Seconds of a step on two stages if transfers took no time: both schedules have this bubble."""
        return (self.microbatches + 2 - 1) * (self.forward + self.backward)


@torch.library.custom_op("raddle_bench::stage", mutates_args=())
def stage(x: Tensor, weight: Tensor, width: int, forward: float, backward: float) -> Tensor:
    """x[n k] to y[n e], every element as a block, or x[n e] to y[n k], means of blocks; times a weight."""
    end = time.perf_counter() + forward
    y = _resized(x, weight, width)
    CALLS["forward"] += 1
    _sleep_until(end)
    return y


@stage.register_fake
def _(x: Tensor, weight: Tensor, width: int, forward: float, backward: float) -> Tensor:
    return x.new_empty(x.shape[0], width)


@torch.library.custom_op("raddle_bench::stage_backward", mutates_args=())
def stage_backward(
    grad: Tensor, x: Tensor, weight: Tensor, seconds: float
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weight (of its effect on the first element alone, which costs nothing)."""
    end = time.perf_counter() + seconds
    size = x.shape[1] / grad.shape[1]  # the adjoint of a block is its sum, of a mean the share of each
    found = _resized(grad, weight / size, x.shape[1])
    of_weight = (grad[0, 0] * x[0, 0]).reshape(weight.shape)
    CALLS["backward"] += 1
    _sleep_until(end)
    return found, of_weight


@stage_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, seconds: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, _, _, ctx.seconds = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
    found, of_weight = stage_backward(grad, *ctx.saved_tensors, ctx.seconds)
    return found, of_weight, None, None, None


stage.register_autograd(_backward, setup_context=_setup)


def _resized(x: Tensor, factor: Tensor, width: int) -> Tensor:
    """Each element as a block of a warm buffer, or the means of blocks."""
    n, k = x.shape
    if width < k:
        blocks = x.view(n, width, k // width)
        return (blocks.mean(-1) if WHOLE[0] else blocks[:, :, 0]) * factor
    y = _warm(n, width)
    blocks = y.view(n, k, width // k)
    (blocks if WHOLE[0] else blocks[:, :, :1]).copy_((x * factor)[:, :, None])
    return y


def _warm(n: int, width: int) -> Tensor:
    """One of a few buffers in turn: more than a step has under way."""
    if (n, width) not in _RINGS:
        _RINGS[n, width] = deque(torch.ones(n, width) for _ in range(RING))
    ring = _RINGS[n, width]
    ring.rotate()
    return ring[0].detach()


def _sleep_until(end: float) -> None:
    """Asleep, but for the last moments: a sleep may end late."""
    rest = end - time.perf_counter() - LATE
    if rest > 0:
        time.sleep(rest)
    while time.perf_counter() < end:
        time.sleep(0)  # lets other threads run


class Stage(nn.Module):
    """One stage: an opaque operator with a parameter."""

    def __init__(self, width: int, row: Row) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.width, self.seconds = width, (row.forward, row.backward)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = stage(x, self.weight, self.width, *self.seconds)
        return y


def model(row: Row) -> nn.Sequential:
    """x[n k] -> activation[n e] -> y[n k]."""
    return nn.Sequential(Stage(row.elements, row), Stage(NARROW, row))


def loss(y: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(y, target)


def batch(row: Row) -> tuple[Tensor, Tensor]:
    """The whole step's: inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    shape = (row.microbatches * SAMPLES, NARROW)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
