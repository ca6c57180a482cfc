"""Computes quick starts for the annealing of coarse partitions.

*Coarse* means that every filter is whole in one part, and not that the partition is rough; a *part* is a
device's share. A start is a matrix of counts x[layer, part]: how many units (filters) of the layer the part
has (counts.py). capacity: the most work of each part.
"""

# l: layer; p: part; x: counts [layer, part]; m: the network as arrays (counts.py); m.work: of one
# unit, by layer

from __future__ import annotations

import heapq
import math

import numpy as np

from raddle.searches.hypergraph.counts import Array, CountModel


def chain(m: CountModel, capacity: Array) -> Array:
    """Fills one part after the other with the layers in order, each part to its share of the work."""
    ends = np.cumsum(capacity / capacity.sum()) * m.total_work
    ends[-1] = math.inf
    x = np.zeros((m.num_layers, len(capacity)), np.int64)
    # For each layer: the work of all layers before it
    before = np.concatenate([[0.0], np.cumsum(m.units * m.work)])
    for l in range(m.num_layers):
        # A unit whose work crosses the border of two parts goes where the middle of its work is.
        middles = before[l] + (np.arange(m.units[l]) + 0.5) * m.work[l]
        x[l] = np.bincount(np.searchsorted(ends, middles), minlength=len(capacity))
    return x


def balanced(m: CountModel, capacity: Array) -> Array:
    """Balances the work: heavy units first, each into the part that is filled to the smallest fraction."""
    x = np.zeros((m.num_layers, len(capacity)), np.int64)
    # A heap of (fraction of the capacity that is filled, part)
    parts = [(0.0, p) for p in range(len(capacity))]
    for l in sorted(range(m.num_layers), key=lambda l: -m.work[l]):
        for _ in range(m.units[l]):
            filled, p = parts[0]
            x[l, p] += 1
            heapq.heapreplace(parts, (filled + m.work[l] / capacity[p], p))
    return x


def layerwise(m: CountModel, capacity: Array) -> Array:
    """Keeps layers whole: heavy layers first, each into the part with the most capacity left."""
    x = np.zeros((m.num_layers, len(capacity)), np.int64)
    capacity_left = capacity.copy()
    for l in sorted(range(m.num_layers), key=lambda l: -m.work[l] * m.units[l]):
        p = int(capacity_left.argmax())
        x[l, p] = m.units[l]
        capacity_left[p] -= m.work[l] * m.units[l]
    return x
