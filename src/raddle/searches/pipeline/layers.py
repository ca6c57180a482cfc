"""What a partitioner sees: a graph of layers with seconds and bytes on them, and a line of devices."""

# v: a layer, u: one that it reads

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layers:
    """By layer: what it takes and holds, and which layers read its output."""

    forward: tuple[float, ...]  # seconds
    backward: tuple[float, ...]  # seconds
    activation: tuple[float, ...]  # bytes of the output
    parameters: tuple[float, ...]  # bytes
    successors: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        columns = (self.forward, self.backward, self.activation, self.parameters)
        check_columns(len(self.successors), columns)
        topological_order(self.successors)


@dataclass(frozen=True)
class LayerCosts:
    """By layer, what one micro-batch takes and holds; seconds by kind of device and layer."""

    forward: tuple[tuple[float, ...], ...]  # seconds
    backward: tuple[tuple[float, ...], ...]  # seconds
    activation: tuple[float, ...]  # bytes of the output
    saved: tuple[float, ...]  # bytes that are kept for the backward
    parameters: tuple[float, ...]  # bytes
    successors: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        columns = (self.activation, self.saved, self.parameters, *self.forward, *self.backward)
        check_columns(len(self.successors), columns)


@dataclass(frozen=True)
class DeviceChain:
    """Devices in the order in which stages take them; link d is between devices d and d + 1."""

    kinds: tuple[int, ...]  # by device, its row in the seconds of the work
    capacity: tuple[float, ...]  # by device, bytes
    bandwidth: tuple[float, ...]  # by link, bytes a second
    latency: tuple[float, ...]  # by link, seconds

    def __post_init__(self) -> None:
        devices, links = len(self.kinds), len(self.kinds) - 1
        lengths = len(self.capacity), len(self.bandwidth), len(self.latency)
        if not devices or lengths != (devices, links, links):
            raise ValueError(
                f"{devices} devices need as many capacities and a link less, got "
                "{} capacities, {} bandwidths and {} latencies.".format(*lengths)
            )

    @classmethod
    def uniform(
        cls, devices: int, *, bandwidth: float, latency: float = 0.0, capacity: float = math.inf
    ) -> DeviceChain:
        """Devices and links that are all alike."""
        links = devices - 1
        return cls((0,) * devices, (capacity,) * devices, (bandwidth,) * links, (latency,) * links)


def check_columns(layers: int, columns: Sequence[Sequence[float]]) -> None:
    """There is at least one layer, and each has a figure in every column, none below 0."""
    if not layers:
        raise ValueError("a pipeline needs at least one layer, got none.")
    for column in columns:
        if len(column) != layers:
            raise ValueError(
                f"{layers} layers need {layers} figures in a column, got {len(column)}."
            )
        if not min(column) >= 0:
            raise ValueError(f"seconds and bytes of layers are at least 0, got {min(column)}.")


def topological_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """Every layer after those that it reads, and a branch as far as it goes before the next one."""
    waits_for = [len(read) for read in predecessors(successors)]
    ready = [v for v, count in enumerate(waits_for) if not count][::-1]
    order = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in reversed(dict.fromkeys(successors[u])):
            waits_for[v] -= 1
            if not waits_for[v]:
                ready.append(v)
    if len(order) < len(successors):
        stuck = sorted(set(range(len(successors))) - set(order))
        raise ValueError(f"layers {stuck} wait for each other: remove the cycle.")
    return order


def predecessors(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """By layer, those that it reads, each once and in rising order."""
    result: list[list[int]] = [[] for _ in successors]
    for u, readers in enumerate(successors):
        for v in dict.fromkeys(readers):
            result[v].append(u)
    return result
