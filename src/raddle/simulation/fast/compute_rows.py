"""Builds the rows of an operator: its compute time on each device, and the bytes that it saves there.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

Rows go into the store (store.py); the methods return their slot (first row, number of rows). A cost key is
equal for operators whose tiles of the same shape take equally long (ComputeCosts.cost_key). active: the
values through which gradients flow. bn: the scope of batch norm's statistics (plans/plan.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raddle.costs.compute import ComputeCosts
from raddle.costs.profile import Profile
from raddle.costs.saved_for_backward import saved_for_backward
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Grid
from raddle.simulation.fast.cluster_arrays import ClusterArrays
from raddle.simulation.fast.durations import tile_seconds
from raddle.simulation.fast.regions import tile_boxes_in
from raddle.simulation.fast.store import RowStore, Slot
from raddle.simulation.fast.tilings import NumberedTiling

Array = np.ndarray


class ComputeRows:
    """Rows of operators, cached by cost and tiling."""

    def __init__(
        self, graph: Graph, cluster: ClusterArrays, active: frozenset[str], bn: str,
        profile: Profile | None,
    ) -> None:  # fmt: skip
        self.graph, self.cluster = graph, cluster
        # Costs of operators that run as one native call with others (costs/native_calls.py), or alone.
        self.fused_costs = ComputeCosts(graph, active, profile, bn=bn)
        self.single_costs = ComputeCosts(graph, active, profile, bn=bn, native_calls={})
        self._saved = _saved_values(graph, active)  # names of values
        # By cost key and cuts (the borders of the tiles in each dimension): for each kind of device, the
        # seconds by tile.
        self._seconds: dict[tuple[Any, ...], list[Array]] = {}

    def run_rows(
        self, store: RowStore, op: Op, tiled: NumberedTiling, phase: str, fused: bool
    ) -> Slot:
        """Returns the slot of an operator's compute rows in a phase ("F", "B"); fused: in a native call."""
        costs = self.fused_costs if fused else self.single_costs
        cost_key = costs.cost_key(op, phase)

        def build() -> Slot:
            seconds = self._tile_seconds(costs, op, tiled, phase, cost_key)
            return store.computes.add(self.cluster.compute_rows(tiled.tile_devices, seconds))

        return store.cached(("run", cost_key, tiled.number), build)

    def saved_bytes_rows(self, store: RowStore, op: Op, tiled: NumberedTiling) -> Slot:
        """Returns the slot of rows (device, bytes): an operator's outputs that are saved for backward."""
        counted = tuple(name in self._saved for name in op.outputs)

        def build() -> Slot:
            total = np.zeros(self.cluster.count, np.int64)
            for dims, name in zip(op.space.outputs, op.outputs, strict=True):
                if name in self._saved:
                    boxes = tile_boxes_in(tiled.tiling, dims)
                    volumes = (boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1)
                    element_bytes = self.graph.values[name].dtype.itemsize
                    np.add.at(
                        total, tiled.tile_devices, element_bytes * np.repeat(volumes, tiled.copies)
                    )
            holders = np.flatnonzero(total)
            return store.sizes.add(np.stack([holders, total[holders]], axis=1))

        return store.cached(("bytes", counted, op.dtypes, tiled.number), build)

    def _tile_seconds(
        self,
        costs: ComputeCosts,
        op: Op,
        tiled: NumberedTiling,
        phase: str,
        cost_key: tuple[Any, ...],
    ) -> Array:
        """Returns by tile, copies included, its seconds on its device."""
        tiling, cluster = tiled.tiling, self.cluster
        key = (*cost_key, tiling.cuts if isinstance(tiling, Grid) else tiling)
        if key not in self._seconds:
            self._seconds[key] = [
                tile_seconds(costs, op, tiling, tiled.regions, phase, device)
                for _, device in cluster.kinds
            ]
        # By kind of device: the seconds by tile, with copies.
        by_kind = [np.repeat(s, tiled.copies) for s in self._seconds[key]]
        if len(by_kind) == 1:
            return by_kind[0]
        return np.asarray(np.choose(cluster.kind_of[tiled.tile_devices], by_kind))


def _saved_values(graph: Graph, active: frozenset[str]) -> frozenset[str]:
    """Returns names of the values that some backward needs."""
    names: set[str] = set()
    for op in graph.ops:
        saved = saved_for_backward(graph, active, op)
        names |= saved.inputs | saved.copies  # a copy is counted as the value
        if saved.output:
            names.update(op.outputs)
    return frozenset(names)
