"""Makes the naive partitions of the thesis (docs/papers.md), sections 5.1.1 to 5.1.4: they balance work.

They do not look at what is sent.

layerwise             whole layers in order; the largest part is as small as possible
filter-horizontal     the filters of every layer in equal numbers
filter-incremental    filters in order fill one part after the other, each to its share of the work
channel-incremental   the same with the input channels of filters

A *part* is a device's share. All but the last are *coarse*: filters (units) stay whole, and the result is
counts x[layer, part] of filters (counts.py). The last is *fine*: its *cells*, single input channels of
filters, may be in different parts (cells.py).
"""

# l: layer; p: part; x: counts [layer, part]; m: the network as arrays (counts.py); m.work: of one
# filter, by layer

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.errors import InputError
from raddle.plans.tiling import even_cuts
from raddle.searches.baselines.filters import FilterRun, assign_runs
from raddle.searches.hypergraph.cells import Cells
from raddle.searches.hypergraph.counts import CountModel
from raddle.searches.hypergraph.explicit import channel_count
from raddle.searches.hypergraph.network import LayerNetwork

Array = np.ndarray


def layerwise(m: CountModel, parts: int) -> Array:
    """Returns the counts; dynamic programming finds the best cut of the chain of layers."""
    if parts > m.num_layers:
        raise InputError(
            f"{m.num_layers} layers cannot be put into {parts} parts: take a method that splits layers."
        )
    work_before = np.concatenate([[0.0], np.cumsum(m.units * m.work)])
    # [p, end]: of the best cut of the layers before `end` into p parts, the work of the largest part
    smallest_largest = np.full((parts + 1, m.num_layers + 1), np.inf)
    # [p, end]: the first layer of the last part in that cut
    first_layer = np.zeros((parts + 1, m.num_layers + 1), int)
    smallest_largest[0, 0] = 0.0
    for p in range(1, parts + 1):
        for end in range(1, m.num_layers + 1):
            largest = np.maximum(
                smallest_largest[p - 1, :end], work_before[end] - work_before[:end]
            )
            first_layer[p, end] = int(largest.argmin())
            smallest_largest[p, end] = largest.min()
    x, end = np.zeros((m.num_layers, parts), np.int64), m.num_layers
    for p in range(parts, 0, -1):
        x[first_layer[p, end] : end, p - 1] = m.units[first_layer[p, end] : end]
        end = first_layer[p, end]
    return x


def horizontal(m: CountModel, parts: int) -> Array:
    """Returns the counts of an equal division of every layer's filters."""
    return np.array([np.diff(even_cuts(int(n), parts)) for n in m.units])


def incremental(m: CountModel, parts: int) -> Array:
    """Returns the counts when the filters, in order, fill one part after the other."""
    x = np.zeros((m.num_layers, parts), np.int64)
    for l, runs in enumerate(_fill_parts(m, m.units.tolist(), parts)):
        for run in runs:
            x[l, run.part] += run.last - run.first  # last: the index after the last unit
    return x


def channel_incremental(network: LayerNetwork, m: CountModel, parts: int) -> Cells:
    """Returns the cells; the partial results of a filter are summed where most of its channels are."""
    counts = [n * channel_count(network, l) for l, n in enumerate(m.units)]
    cells = []
    for l, runs in enumerate(_fill_parts(m, counts, parts)):
        layer_cells = np.empty(counts[l], np.int16)
        for run in runs:
            layer_cells[run.first : run.last] = run.part
        cells.append(layer_cells.reshape(m.units[l], -1))
    return Cells(cells, [_majority_part(filter_cells) for filter_cells in cells])


def _fill_parts(m: CountModel, counts: Sequence[int], parts: int) -> list[list[FilterRun]]:
    """Returns, for each layer, runs of filters or cells and their parts.

    counts: how many filters or cells are placed, by layer.
    """
    work = [(int(n), float(w)) for n, w in zip(counts, m.units * m.work, strict=True)]
    min_work = 1e-12 * m.total_work  # so that a layer without work gets a part, too
    return assign_runs([(n, max(w, min_work)) for n, w in work], [m.total_work / parts] * parts)


def _majority_part(cells: Array) -> Array:
    """Returns, for each filter (row of cells), the part of its middle cell.

    A row is a few runs of equal parts, so this part mostly has the most cells.
    """
    return cells[:, cells.shape[1] // 2].astype(np.int64)
