"""Quick coarse partitions, as counts of filters by layer and part, that annealing starts from."""

# l: layer; p: part

from __future__ import annotations

import heapq
import math

import numpy as np

from raddle.searches.hypergraph.counts import Array, CountModel


def chain(m: CountModel, capacity: Array) -> Array:
    """Layers in their order fill one part after the other, each to its share of the work."""
    ends = np.cumsum(capacity / capacity.sum()) * m.total_work
    ends[-1] = math.inf
    x = np.zeros((m.num_layers, len(capacity)), np.int64)
    before = np.concatenate([[0.0], np.cumsum(m.units * m.work)])
    for l in range(m.num_layers):
        # a unit lies where its middle does
        middles = before[l] + (np.arange(m.units[l]) + 0.5) * m.work[l]
        x[l] = np.bincount(np.searchsorted(ends, middles), minlength=len(capacity))
    return x


def balanced(m: CountModel, capacity: Array) -> Array:
    """Heavy units first, each into the part with the most of its capacity left: as even as can be."""
    x = np.zeros((m.num_layers, len(capacity)), np.int64)
    parts = [(0.0, p) for p in range(len(capacity))]
    for l in sorted(range(m.num_layers), key=lambda l: -m.work[l]):
        for _ in range(m.units[l]):
            full, p = parts[0]
            x[l, p] += 1
            heapq.heapreplace(parts, (full + m.work[l] / capacity[p], p))
    return x


def layerwise(m: CountModel, capacity: Array) -> Array:
    """Heavy layers first, each whole into the part with the most work left."""
    x = np.zeros((m.num_layers, len(capacity)), np.int64)
    left = capacity.copy()
    for l in sorted(range(m.num_layers), key=lambda l: -m.work[l] * m.units[l]):
        p = int(left.argmax())
        x[l, p] = m.units[l]
        left[p] -= m.work[l] * m.units[l]
    return x
