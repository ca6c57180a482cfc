"""Measures when gradients become complete and how long an all-reduce takes; sum_order.py uses both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from raddle.transport.base import Transport

TRIES = 3  # all-reduces of each size; the fastest counts
SMALL, LARGE = 1, 250_000  # elements: one measures the latency, the other has the size of a slice


class CompletionTimes:
    """The time at which each parameter's gradient was complete; measured in the first step only."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times: dict[int, float] = {}
        self._excluded_seconds = 0.0  # so far, in contexts of `excluded`

    def record(self, index: int) -> None:
        """Records that a gradient is complete now. It waits for the GPU: slow, but used in one step."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self._times[index] = time.perf_counter() - self._excluded_seconds

    @contextlib.contextmanager
    def excluded(self) -> Iterator[None]:
        """Leaves out the time of this context: other backward passes do not do this work."""
        begin = time.perf_counter()
        yield
        self._excluded_seconds += time.perf_counter() - begin

    def since_first(self, count: int) -> list[float]:
        """Returns, for `count` parameters, the seconds since the first gradient.

        A parameter without a gradient counts as complete with the last one.
        """
        first, last = min(self._times.values(), default=0.0), max(self._times.values(), default=0.0)
        return [self._times.get(index, last) - first for index in range(count)]


class AllReduceCost(NamedTuple):
    """The time that an all-reduce takes: latency + per_element * elements."""

    latency: float  # seconds
    per_element: float  # seconds for each element

    def seconds(self, elements: int) -> float:
        """Returns the time of an all-reduce of so many elements."""
        return self.latency + self.per_element * elements


def measure_all_reduce(
    transport: Transport, device: torch.device, dtype: torch.dtype
) -> AllReduceCost:
    """Returns the measured time of all-reduces over all ranks, which all call it.

    It takes the fastest of some tries, because in the others a rank may have come late.
    """
    small = _fastest(transport, torch.zeros(SMALL, dtype=dtype, device=device))
    large = _fastest(transport, torch.zeros(LARGE, dtype=dtype, device=device))
    return AllReduceCost(small, max(0.0, large - small) / LARGE)


def _fastest(transport: Transport, buffer: torch.Tensor) -> float:
    """Returns the seconds of the fastest of TRIES all-reduces of a buffer."""
    everyone, seconds = tuple(range(transport.size)), []
    for _ in range(TRIES):
        begin = time.perf_counter()
        transport.all_reduce(everyone, 0, buffer, "to measure").wait()
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
