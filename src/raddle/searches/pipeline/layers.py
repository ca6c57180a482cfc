"""Defines the input of the pipeline partitioners: a graph of layers with costs, and a chain of devices.

A partitioner assigns layers to stages and stages to devices. Layers are numbered from 0. A tuple with an
entry per layer is called a column. There are two inputs: `Layers` for shortest_period.py (pipelines without
a flush) and `LayerCosts` for shortest_step.py (pipelines with a flush).
"""

# v: a layer, u: a layer that v reads

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layers:
    """Costs of each layer for one micro-batch on one device, where all devices are of the same kind."""

    forward: tuple[float, ...]  # seconds
    backward: tuple[float, ...]  # seconds
    activation: tuple[float, ...]  # bytes of the output
    parameters: tuple[float, ...]  # bytes
    successors: tuple[tuple[int, ...], ...]  # the layers that read the output

    def __post_init__(self) -> None:
        columns = (self.forward, self.backward, self.activation, self.parameters)
        check_columns(len(self.successors), columns)
        topological_order(self.successors)


@dataclass(frozen=True)
class LayerCosts:
    """Costs of each layer for one micro-batch, where devices may be of several kinds."""

    forward: tuple[tuple[float, ...], ...]  # seconds, [kind of device][layer]
    backward: tuple[tuple[float, ...], ...]  # seconds, [kind of device][layer]
    activation: tuple[float, ...]  # bytes of the output
    saved: tuple[float, ...]  # bytes of activations saved for the backward
    parameters: tuple[float, ...]  # bytes
    successors: tuple[tuple[int, ...], ...]  # the layers that read the output

    def __post_init__(self) -> None:
        columns = (self.activation, self.saved, self.parameters, *self.forward, *self.backward)
        check_columns(len(self.successors), columns)


@dataclass(frozen=True)
class DeviceChain:
    """The devices in the order in which stages use them; link d connects devices d and d + 1."""

    kinds: tuple[int, ...]  # by device, its kind: the row of LayerCosts.forward and .backward
    capacity: tuple[float, ...]  # by device, bytes of memory
    bandwidth: tuple[float, ...]  # by link, bytes per second
    latency: tuple[float, ...]  # by link, seconds

    def __post_init__(self) -> None:
        devices, links = len(self.kinds), len(self.kinds) - 1
        lengths = len(self.capacity), len(self.bandwidth), len(self.latency)
        if not devices or lengths != (devices, links, links):
            raise ValueError(
                f"{devices} devices need as many capacities and one link less, got "
                "{} capacities, {} bandwidths and {} latencies.".format(*lengths)
            )

    @classmethod
    def uniform(
        cls, devices: int, *, bandwidth: float, latency: float = 0.0, capacity: float = math.inf
    ) -> DeviceChain:
        """Return a chain of equal devices and equal links."""
        links = devices - 1
        return cls((0,) * devices, (capacity,) * devices, (bandwidth,) * links, (latency,) * links)


def check_columns(layers: int, columns: Sequence[Sequence[float]]) -> None:
    """Raise ValueError unless there is a layer, and every column has a value >= 0 for each layer."""
    if not layers:
        raise ValueError("a pipeline needs at least one layer, got none.")
    for column in columns:
        if len(column) != layers:
            raise ValueError(
                f"{layers} layers need {layers} values in a column, got {len(column)}."
            )
        if not min(column) >= 0:
            raise ValueError(f"seconds and bytes of layers are at least 0, got {min(column)}.")


def topological_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """Return the layers in an order where each comes after the layers that it reads.

    The order is depth first: it follows one branch as far as possible before it starts the next one.
    Raises ValueError if the graph has a cycle.
    """
    # For each layer, how many of the layers that it reads are not in the order yet.
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
    """Return, for each layer, the layers that it reads: each once, in ascending order."""
    result: list[list[int]] = [[] for _ in successors]
    for u, readers in enumerate(successors):
        for v in dict.fromkeys(readers):
            result[v].append(u)
    return result
