"""When gradients become complete, and how long a sum takes: what an order of sums is made from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from raddle.transport.base import Transport

TRIES = 3
SMALL, LARGE = 1, 250_000  # elements: a latency, and a slice


class CompletionTimes:
    """By parameter, when its gradient was complete last."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times: dict[int, float] = {}
        self._excluded_seconds = 0.0  # seconds

    def record(self, index: int) -> None:
        """Waits for a GPU: it is for one step, whose gradients are looked at anyway."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self._times[index] = time.perf_counter() - self._excluded_seconds

    @contextlib.contextmanager
    def excluded(self) -> Iterator[None]:
        """What only the first backward does takes no time."""
        begin = time.perf_counter()
        yield
        self._excluded_seconds += time.perf_counter() - begin

    def since_first(self, count: int) -> list[float]:
        """Since the first; what has no gradient is there with the last."""
        first, last = min(self._times.values(), default=0.0), max(self._times.values(), default=0.0)
        return [self._times.get(index, last) - first for index in range(count)]


class AllReduceCost(NamedTuple):
    """Of the channel that sums."""

    latency: float  # seconds
    per_element: float  # seconds of an element

    def seconds(self, elements: int) -> float:
        return self.latency + self.per_element * elements


def measure_all_reduce(
    transport: Transport, device: torch.device, dtype: torch.dtype
) -> AllReduceCost:
    """All ranks measure together; the fastest of some tries, so that no rank's lateness counts."""
    small = _fastest(transport, torch.zeros(SMALL, dtype=dtype, device=device))
    large = _fastest(transport, torch.zeros(LARGE, dtype=dtype, device=device))
    return AllReduceCost(small, max(0.0, large - small) / LARGE)


def _fastest(transport: Transport, buffer: torch.Tensor) -> float:
    everyone, seconds = tuple(range(transport.size)), []
    for _ in range(TRIES):
        begin = time.perf_counter()
        transport.all_reduce(everyone, 0, buffer, "to measure").wait()
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
