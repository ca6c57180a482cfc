"""Starts for many parts: consecutive layers, a group at a time, on parts of their own.

A group's volume does not depend on the others then, so the best groups are a shortest path. Each
layer of a group is spread evenly over the group's parts in as many rows as are cheapest: a rows and b
parts in a row cost (a - 1) maps read and (b - 1) maps of partial results, and one map read more where it
comes from outside.
"""

# l: layer; i, j: a group's first layer and the one after its last; s: parts of a group; a: rows

from __future__ import annotations

import math

import numpy as np

from raddle.searches.hypergraph.fine_rows import FineRows, apportion
from raddle.searches.hypergraph.fine_walk import FineProblem
from raddle.searches.hypergraph.network import LayerNetwork


def chain_rows(
    network: LayerNetwork, pb: FineProblem, parts: int, capacity: float
) -> FineRows | None:
    """Groups of layers within a capacity, or None where they need more parts."""
    layers = len(network.layers)
    layer_groups = _LayerGroups(network, pb, parts)
    work = np.concatenate([[0.0], np.cumsum(pb.m.work * pb.m.units)])
    best = np.full((layers + 1, parts + 1), np.inf)  # volume of the layers before, with parts used
    best[0, 0] = 0
    previous_end = np.zeros((layers + 1, parts + 1), np.int64)
    for j in range(1, layers + 1):
        for i in range(j - 1, -1, -1):
            s = max(1, math.ceil((work[j] - work[i]) / capacity - 1e-9))
            if s > parts:
                break
            total = best[i, : parts + 1 - s] + layer_groups.volume(i, j, s)
            is_better = total < best[j, s:]
            best[j, s:][is_better], previous_end[j, s:][is_better] = total[is_better], i
    parts_used = int(best[layers].argmin())
    if not np.isfinite(best[layers, parts_used]):
        return None
    groups, j = [], layers
    while j:
        i = int(previous_end[j, parts_used])
        s = max(1, math.ceil((work[j] - work[i]) / capacity - 1e-9))
        parts_used -= s
        groups.append((i, j, parts_used, s))
        j = i
    return layer_groups.rows(groups)


class _LayerGroups:
    """Volumes of groups of layers, kept by layer and number of parts."""

    def __init__(self, network: LayerNetwork, pb: FineProblem, parts: int) -> None:
        self.network, self.pb, self.parts = network, pb, parts
        self.row_sizes_cache: dict[tuple[int, int], tuple[list[int], float]] = {}
        self.maps_read: list[list[int]] = [[] for _ in network.layers]
        for v, feature_map in enumerate(network.maps):
            for t in feature_map.dense_readers:
                self.maps_read[t].append(v)

    def volume(self, i: int, j: int, s: int) -> float:
        """What a group on s parts receives and merges."""
        total = 0.0
        row_counts: dict[int, int] = {}  # most rows that a map goes to
        for l in range(i, j):
            sizes, partial_sums = self.row_sizes(l, s)
            total += partial_sums
            for v in self.maps_read[l]:
                row_counts[v] = max(row_counts.get(v, 0), len(sizes))
        for v, feature_map in enumerate(self.network.maps):
            inside = sum(p.units for p in feature_map.pieces if i <= p.layer < j)
            elementwise = any(
                i <= p.layer < j
                for reader_pieces in feature_map.elementwise_readers
                for p in reader_pieces
            )
            if v in row_counts:
                total += feature_map.unit_elements * (row_counts[v] * feature_map.units - inside)
            elif elementwise:
                total += feature_map.unit_elements * (feature_map.units - inside)
        return total

    def row_sizes(self, l: int, s: int) -> tuple[list[int], float]:
        """Parts by row where it is cheapest on s parts, and the partial results that are merged then."""
        if (l, s) not in self.row_sizes_cache:
            units, channels = int(self.pb.m.units[l]), int(self.pb.channels[l])
            maps = [self.network.maps[v] for v in self.maps_read[l]]
            read_elements = sum(v.unit_elements * v.units for v in maps)
            best_volume, self.row_sizes_cache[l, s] = math.inf, ([1] * min(s, units), 0.0)
            for a in range(1, min(s, units) + 1) if self.pb.splittable[l] else ():
                sizes = [s // a + (r < s % a) for r in range(a)]
                partial_sums = float(
                    self.pb.unit_elements[l] * units * (sum(b * b for b in sizes) / s - 1)
                )
                if sizes[0] <= channels and a * read_elements + partial_sums < best_volume:
                    best_volume, self.row_sizes_cache[l, s] = (
                        a * read_elements + partial_sums,
                        (sizes, partial_sums),
                    )
        return self.row_sizes_cache[l, s]

    def rows(self, groups: list[tuple[int, int, int, int]]) -> FineRows:
        """Groups as (first layer, one after the last, first part, parts)."""
        shape = len(self.network.layers), self.parts
        rows = FineRows(np.zeros(shape, np.int64), np.full(shape, -1), np.zeros(shape, np.int64))
        for i, j, first, s in groups:
            for l in range(i, j):
                self._spread_layer(rows, l, first, s)
        return rows

    def _spread_layer(self, rows: FineRows, l: int, first: int, s: int) -> None:
        sizes, _ = self.row_sizes(l, s)
        heights = apportion(self.pb.m.units[l], np.array(sizes), 1)
        part = first
        for r, (b, height) in enumerate(zip(sizes, heights, strict=True)):
            equal_shares = np.ones(b)
            rows.row[l, part : part + b] = r
            rows.owned[l, part : part + b] = apportion(height, equal_shares, 0)
            rows.width[l, part : part + b] = apportion(self.pb.channels[l], equal_shares, 1)
            part += b
