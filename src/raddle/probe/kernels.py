"""Defines the kernels that `raddle probe` times, to measure what a device computes in a second.

They are matrix products, a convolution, attention, a copy and tiny operators. Each kernel knows its work,
for example FLOPs, so its time gives a rate, for example FLOP/s.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# A kernel is timed in parts, and the median counts: a short disturbance affects only one part.
WINDOW_PARTS = 3
CHAIN_LENGTH = 32  # pairs of operators (add, ReLU) in the chain of tiny operators

Call = Callable[[], object]  # runs the kernel once


@dataclass(frozen=True)
class Kernel:
    """A kernel to time."""

    name: str
    work: float  # of one call: FLOPs; for "copy" bytes; for "operators" their number in a chain
    make: Callable[[], Call]  # allocates the tensors, so that only one kernel at a time has memory


def kernels(device: str) -> list[Kernel]:
    """List the kernels to time on "cpu" or "cuda", in order."""
    gpu = device != "cpu"
    side = 4096 if gpu else 640  # rows and columns of a matrix
    result = [_matmul(device, torch.float32, side)]
    # The numbers are the batch of the convolution and the length of the sequence.
    result += [_conv(device, 64 if gpu else 4), _attention(device, 1024 if gpu else 256)]
    result += [_matmul(device, torch.float64, side // 2), _matmul(device, torch.bfloat16, side)]
    # Some CPUs emulate float16 a hundred times slower, so the product is small.
    result.append(_matmul(device, torch.float16, side if gpu else 192))
    # The numbers are the bytes to copy.
    result += [_copy(device, 2**30 if gpu else 2**26), _operator_chain(device)]
    return result


def rate(kernel: Kernel, seconds: float, device: str) -> float | None:
    """Return the work per second, measured for about `seconds`; None if torch has no such operator."""
    try:
        call = kernel.make()
        call()  # warm-up: allocation, compilation, choice of an algorithm
        once = _seconds_of(call, 1, device)
    except RuntimeError:
        return None
    count = max(1, round(seconds / WINDOW_PARTS / max(once, 1e-7)))
    parts = [_seconds_of(call, count, device) for _ in range(WINDOW_PARTS)]
    return count * kernel.work / statistics.median(parts)


def _seconds_of(call: Call, count: int, device: str) -> float:
    """Return the seconds of `count` calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _matmul(device: str, dtype: torch.dtype, side: int) -> Kernel:
    """Return the product of two square matrices; side: their rows and columns."""

    def make() -> Call:
        x, y = (_random(side, side, device=device, dtype=dtype) for _ in range(2))
        return lambda: x @ y

    return Kernel(f"matmul {_dtype_name(dtype)}", 2.0 * side**3, make)


def _conv(device: str, batch: int) -> Kernel:
    """Return a 3 x 3 convolution."""
    channels, side = 64, 56  # a layer of the first stage of a ResNet

    def make() -> Call:
        x = _random(batch, channels, side, side, device=device)
        w = _random(channels, channels, 3, 3, device=device)
        return lambda: functional.conv2d(x, w, padding=1)

    return Kernel("conv float32", 2.0 * batch * channels**2 * side**2 * 9, make)


def _attention(device: str, length: int) -> Kernel:
    """Return scaled dot-product attention; length: of the sequence."""
    batch, heads, width = 2, 8, 64

    def make() -> Call:
        q, k, v = (_random(batch, heads, length, width, device=device) for _ in range(3))
        return lambda: functional.scaled_dot_product_attention(q, k, v)

    return Kernel("attention float32", 4.0 * batch * heads * length**2 * width, make)


def _copy(device: str, nbytes: int) -> Kernel:
    """Return a copy in memory, which measures the memory bandwidth."""

    def make() -> Call:
        source = torch.ones(nbytes // 4, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return Kernel("copy", 2.0 * nbytes, make)  # each byte is read and written


def _operator_chain(device: str) -> Kernel:
    """Return forward and backward of a chain of tiny operators, which measures an operator's overhead."""

    def make() -> Call:
        x = torch.ones(8, device=device, requires_grad=True)

        def call() -> None:
            y = x
            for _ in range(CHAIN_LENGTH):
                y = torch.relu(y + x)
            torch.autograd.grad(y.sum(), x)

        return call

    # Two operators in a pair, in forward and in backward.
    return Kernel("operators", 2.0 * 2 * CHAIN_LENGTH, make)


def _random(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a random tensor."""
    return torch.randn(*shape, device=device).to(dtype)


def _dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name without "torch."."""
    return str(dtype).removeprefix("torch.")
