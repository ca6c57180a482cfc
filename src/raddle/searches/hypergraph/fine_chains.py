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

from raddle.searches.hypergraph.fine_rows import Rows, apportioned
from raddle.searches.hypergraph.fine_walk import Problem
from raddle.searches.hypergraph.network import LayerNetwork


def chained(network: LayerNetwork, pb: Problem, parts: int, capacity: float) -> Rows | None:
    """Groups of layers within a capacity, or None where they need more parts."""
    layers = len(network.layers)
    group = _Groups(network, pb, parts)
    work = np.concatenate([[0.0], np.cumsum(pb.m.work * pb.m.units)])
    best = np.full((layers + 1, parts + 1), np.inf)  # volume of the layers before, with parts used
    best[0, 0] = 0
    came = np.zeros((layers + 1, parts + 1), np.int64)
    for j in range(1, layers + 1):
        for i in range(j - 1, -1, -1):
            s = max(1, math.ceil((work[j] - work[i]) / capacity - 1e-9))
            if s > parts:
                break
            total = best[i, : parts + 1 - s] + group.volume(i, j, s)
            less = total < best[j, s:]
            best[j, s:][less], came[j, s:][less] = total[less], i
    used = int(best[layers].argmin())
    if not np.isfinite(best[layers, used]):
        return None
    groups, j = [], layers
    while j:
        i = int(came[j, used])
        s = max(1, math.ceil((work[j] - work[i]) / capacity - 1e-9))
        used -= s
        groups.append((i, j, used, s))
        j = i
    return group.rows(groups)


class _Groups:
    """Volumes of groups of layers, kept by layer and number of parts."""

    def __init__(self, network: LayerNetwork, pb: Problem, parts: int) -> None:
        self.network, self.pb, self.parts = network, pb, parts
        self.known: dict[tuple[int, int], tuple[list[int], float]] = {}
        self.reads: list[list[int]] = [[] for _ in network.layers]
        for v, own in enumerate(network.maps):
            for t in own.dense_readers:
                self.reads[t].append(v)

    def volume(self, i: int, j: int, s: int) -> float:
        """What a group on s parts receives and merges."""
        total = 0.0
        read: dict[int, int] = {}  # most rows that a map goes to
        for l in range(i, j):
            sizes, merged = self.row_sizes(l, s)
            total += merged
            for v in self.reads[l]:
                read[v] = max(read.get(v, 0), len(sizes))
        for v, own in enumerate(self.network.maps):
            inside = sum(p.units for p in own.pieces if i <= p.layer < j)
            alike = any(i <= p.layer < j for form in own.elementwise_readers for p in form)
            if v in read:
                total += own.unit_elements * (read[v] * own.units - inside)
            elif alike:
                total += own.unit_elements * (own.units - inside)
        return total

    def row_sizes(self, l: int, s: int) -> tuple[list[int], float]:
        """Parts by row where it is cheapest on s parts, and the partial results that are merged then."""
        if (l, s) not in self.known:
            units, every = int(self.pb.m.units[l]), int(self.pb.channels[l])
            maps = [self.network.maps[v] for v in self.reads[l]]
            once = sum(v.unit_elements * v.units for v in maps)
            best, self.known[l, s] = math.inf, ([1] * min(s, units), 0.0)
            for a in range(1, min(s, units) + 1) if self.pb.able[l] else ():
                sizes = [s // a + (r < s % a) for r in range(a)]
                merged = float(self.pb.made[l] * units * (sum(b * b for b in sizes) / s - 1))
                if sizes[0] <= every and a * once + merged < best:
                    best, self.known[l, s] = a * once + merged, (sizes, merged)
        return self.known[l, s]

    def rows(self, groups: list[tuple[int, int, int, int]]) -> Rows:
        """Groups as (first layer, one after the last, first part, parts)."""
        shape = len(self.network.layers), self.parts
        found = Rows(np.zeros(shape, np.int64), np.full(shape, -1), np.zeros(shape, np.int64))
        for i, j, first, s in groups:
            for l in range(i, j):
                self._spread(found, l, first, s)
        return found

    def _spread(self, found: Rows, l: int, first: int, s: int) -> None:
        sizes, _ = self.row_sizes(l, s)
        heights = apportioned(self.pb.m.units[l], np.array(sizes), 1)
        at = first
        for r, (b, height) in enumerate(zip(sizes, heights, strict=True)):
            even = np.ones(b)
            found.row[l, at : at + b] = r
            found.own[l, at : at + b] = apportioned(height, even, 0)
            found.width[l, at : at + b] = apportioned(self.pb.channels[l], even, 1)
            at += b
