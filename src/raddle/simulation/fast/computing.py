"""Rows of what devices compute of an operator, and of the bytes that its outputs keep there."""

from __future__ import annotations

from typing import Any

import numpy as np

from raddle.costs.compute import ComputeCosts
from raddle.costs.profile import Profile
from raddle.costs.saved_for_backward import saved_for_backward
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Grid
from raddle.simulation.fast.durations import tile_seconds
from raddle.simulation.fast.machine import Machine
from raddle.simulation.fast.regions import boxes_of
from raddle.simulation.fast.store import Slot, Store
from raddle.simulation.fast.tiled import Tiled

Array = np.ndarray


class Computing:
    """Seconds of tiles, alone or in a composite that PyTorch has one call for."""

    def __init__(
        self, graph: Graph, machine: Machine, active: frozenset[str], bn: str,
        profile: Profile | None,
    ) -> None:  # fmt: skip
        self.graph, self.machine = graph, machine
        self.together = ComputeCosts(graph, active, profile, bn=bn)
        self.apart = ComputeCosts(graph, active, profile, bn=bn, native_calls={})
        self._kept = _kept_values(graph, active)
        self._seconds: dict[tuple[Any, ...], list[Array]] = {}

    def run(self, store: Store, op: Op, tiled: Tiled, phase: str, together: bool) -> Slot:
        """Rows of what devices compute of an operator, forward or backward."""
        compute = self.together if together else self.apart
        alike = compute.cost_key(op, phase)

        def find() -> Slot:
            seconds = self._tile_seconds(compute, op, tiled, phase, alike)
            return store.computes.add(self.machine.by_device(tiled.each, seconds))

        return store.once(("run", alike, tiled.number), find)

    def outputs(self, store: Store, op: Op, tiled: Tiled) -> Slot:
        """Rows of bytes that an operator's outputs keep on devices."""
        counted = tuple(name in self._kept for name in op.outputs)

        def find() -> Slot:
            total = np.zeros(self.machine.count, np.int64)
            for dims, name in zip(op.space.outputs, op.outputs, strict=True):
                if name in self._kept:
                    boxes = boxes_of(tiled.tiling, dims)
                    volumes = (boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1)
                    width = self.graph.values[name].dtype.itemsize
                    np.add.at(total, tiled.each, width * np.repeat(volumes, tiled.copies))
            own = np.flatnonzero(total)
            return store.sizes.add(np.stack([own, total[own]], axis=1))

        return store.once(("bytes", counted, op.dtypes, tiled.number), find)

    def _tile_seconds(
        self, compute: ComputeCosts, op: Op, tiled: Tiled, phase: str, alike: tuple[Any, ...]
    ) -> Array:
        """Of every tile, copies included, on its own device."""
        tiling, machine = tiled.tiling, self.machine
        key = (*alike, tiling.cuts if isinstance(tiling, Grid) else tiling)
        if key not in self._seconds:
            self._seconds[key] = [
                tile_seconds(compute, op, tiling, tiled.regions, phase, device)
                for _, device in machine.kinds
            ]
        by_kind = [np.repeat(s, tiled.copies) for s in self._seconds[key]]
        if len(by_kind) == 1:
            return by_kind[0]
        return np.asarray(np.choose(machine.kind_of[tiled.each], by_kind))


def _kept_values(graph: Graph, active: frozenset[str]) -> frozenset[str]:
    """Values that operators make and some backward needs."""
    found: set[str] = set()
    for op in graph.ops:
        own = saved_for_backward(graph, active, op)
        found |= own.inputs
        if own.output:
            found.update(op.outputs)
    return frozenset(found)
