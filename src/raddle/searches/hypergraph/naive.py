"""The thesis's naive partitions (its sections 5.1.1 to 5.1.4), on the work of layers.

layerwise             whole layers in order, with the smallest largest part
filter-horizontal     the filters of every layer divided equally
filter-incremental    filters in order, a part after the other, each until it has its share
channel-incremental   the same with channels of filters
"""

# l: layer; p: part

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.errors import InputError
from raddle.plans.tiling import even_cuts
from raddle.searches.baselines.filters import Run, assign_runs
from raddle.searches.hypergraph.cells import Cells
from raddle.searches.hypergraph.counts import Model
from raddle.searches.hypergraph.explicit import channels
from raddle.searches.hypergraph.network import Network

Array = np.ndarray


def layerwise(m: Model, parts: int) -> Array:
    """The best cut of the chain of layers, by a table over parts and layers."""
    if parts > m.layers:
        raise InputError(f"{m.layers} layers cannot be put into {parts} parts: split filters.")
    before = np.concatenate([[0.0], np.cumsum(m.units * m.work)])
    best = np.full((parts + 1, m.layers + 1), np.inf)
    first = np.zeros((parts + 1, m.layers + 1), int)
    best[0, 0] = 0.0
    for p in range(1, parts + 1):
        for end in range(1, m.layers + 1):
            largest = np.maximum(best[p - 1, :end], before[end] - before[:end])
            first[p, end] = int(largest.argmin())
            best[p, end] = largest.min()
    x, end = np.zeros((m.layers, parts), np.int64), m.layers
    for p in range(parts, 0, -1):
        x[first[p, end] : end, p - 1] = m.units[first[p, end] : end]
        end = first[p, end]
    return x


def horizontal(m: Model, parts: int) -> Array:
    return np.array([np.diff(even_cuts(int(n), parts)) for n in m.units])


def incremental(m: Model, parts: int) -> Array:
    x = np.zeros((m.layers, parts), np.int64)
    for l, runs in enumerate(_filled(m, m.units.tolist(), parts)):
        for run in runs:
            x[l, run.part] += run.last - run.first
    return x


def channel_incremental(network: Network, m: Model, parts: int) -> Cells:
    """A filter's sum is where most of its channels are."""
    counts = [n * channels(network, l) for l, n in enumerate(m.units)]
    cells = []
    for l, runs in enumerate(_filled(m, counts, parts)):
        own = np.empty(counts[l], np.int16)
        for run in runs:
            own[run.first : run.last] = run.part
        cells.append(own.reshape(m.units[l], -1))
    return Cells(cells, [_most(own) for own in cells])


def _filled(m: Model, counts: Sequence[int], parts: int) -> list[list[Run]]:
    work = [(int(n), float(w)) for n, w in zip(counts, m.units * m.work, strict=True)]
    idle = 1e-12 * m.total  # a layer without work is somewhere, too
    return assign_runs([(n, max(w, idle)) for n, w in work], [m.total / parts] * parts)


def _most(cells: Array) -> Array:
    """By row, the part that has most of it; rows are in runs, so the middle tells."""
    return cells[:, cells.shape[1] // 2].astype(np.int64)
