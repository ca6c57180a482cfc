"""Makes coarse partitions with Mt-KaHyPar, a general hypergraph partitioner, on blocks of filters.

*Coarse* means that every filter is whole in one part, and not a coarsened hypergraph; a *part* is a
device's share. A *map* is a feature map: a value that layers read. It consists of *pieces*: the filters
(units) of one layer, then those of the next. A *dense* reader of a map is a layer: a part that has units of
it needs all units of the map. An *elementwise* reader is an operator such as an add: a part that has unit i
of it needs unit i of the map.

Filters of a layer are interchangeable, so a few dozen blocks per layer are enough; a block is a vertex. The
net of a block joins it with all blocks of the dense readers of its map, and with the same block of each
elementwise reader (network.py). The vertices of a net are its *pins*. The cost of the net is the elements
of the block's output.
"""

# l, t: layers; b: block of a layer; v: feature map; p: part; m: the network as arrays (counts.py);
# h: the hypergraph; u: vertex

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph.counts import Array, CountModel

# Mt-KaHyPar has 32 bits for weights, and for the connectivity (KM1, below) of all nets.
MAX_WEIGHT = 1 << 30


class BlockHypergraph(NamedTuple):
    """A hypergraph whose vertices are blocks of filters."""

    layer: Array  # by vertex
    units: Array  # filters in the block, by vertex
    nets: list[list[int]]  # the vertices of each net
    cost: list[int]  # elements, by net


def partition_blocks(
    m: CountModel,
    parts: int,
    epsilon: float,
    blocks: int,
    seed: int,
    *,
    shares: Sequence[float] | None = None,
) -> Array:
    """Returns Mt-KaHyPar's partition, as counts of filters [layer, part]; blocks: per layer, at most.

    A part may have (1 + epsilon) x its share of the work, or more if blocks are large. shares: of the
    work, by part; None: equal.
    """
    graph = build_hypergraph(m, blocks)
    part_of_block = np.array(run_mtkahypar(m, graph, parts, epsilon, seed, shares=shares), np.int64)
    x = np.zeros((m.num_layers, parts), np.int64)
    np.add.at(x, (graph.layer, part_of_block), graph.units)
    return x


def build_hypergraph(m: CountModel, blocks: int) -> BlockHypergraph:
    """Builds the hypergraph of at most `blocks` blocks per layer, of nearly equal size."""
    # For each layer: the number of filters of each block
    sizes = [np.diff(np.arange(b + 1) * n // b) for n in m.units for b in [min(n, blocks)]]
    first_vertex = np.cumsum([0, *(len(block_sizes) for block_sizes in sizes)])
    nets, cost = [], []
    for v in range(len(m.cost)):
        dense = m.dense_layer[m.dense_start[v] : m.dense_start[v + 1]]
        readers = {int(u) for t in dense for u in range(first_vertex[t], first_vertex[t + 1])}
        elementwise = slice(m.elementwise_start[v], m.elementwise_start[v + 1])
        for i, l in enumerate(m.piece_layer[m.piece_start[v] : m.piece_start[v + 1]]):
            # Layers of elementwise readers: block b of each reads block b of this piece.
            same_unit_layers = m.elementwise_layer[elementwise][
                m.elementwise_piece[elementwise] == i
            ]
            for b, units in enumerate(sizes[l]):
                pins = readers | {int(first_vertex[t]) + b for t in (l, *same_unit_layers)}
                if len(pins) > 1:
                    nets.append(sorted(pins))
                    cost.append(int(m.cost[v] * units))
    layer = np.repeat(np.arange(m.num_layers), np.diff(first_vertex))
    return BlockHypergraph(layer, np.concatenate(sizes), nets, cost)


def run_mtkahypar(
    m: CountModel,
    h: BlockHypergraph,
    parts: int,
    epsilon: float,
    seed: int,
    *,
    shares: Sequence[float] | None = None,
) -> list[int]:
    """Returns the part of every vertex of h.

    epsilon: a part may have (1 + epsilon) x its share of the work; shares: by part; None: equal.
    """
    if parts == 1 or not h.nets:
        return [0] * len(h.layer)
    import mtkahypar  # type: ignore[import-not-found]

    mtkahypar_instance = _initialized()
    mtkahypar.set_seed(seed)
    context = mtkahypar_instance.context_from_preset(mtkahypar.PresetType.DETERMINISTIC_QUALITY)
    context.logging = False
    # KM1: the sum over nets of (parts in the net - 1) x cost
    context.set_partitioning_parameters(parts, epsilon, mtkahypar.Objective.KM1)
    weights = _integer_weights(m.work[h.layer] * h.units, MAX_WEIGHT / 2)
    if shares is not None:
        limit = (1 + epsilon) * sum(weights) / sum(shares)
        # Mt-KaHyPar calls a part a block.
        context.set_individual_target_block_weights([math.ceil(limit * s) for s in shares])
    common_divisor = math.gcd(*h.cost)
    max_cost = MAX_WEIGHT / min(parts, max(len(net) for net in h.nets))
    cost = _integer_weights(np.array(h.cost) / common_divisor, max_cost)
    graph = mtkahypar_instance.create_hypergraph(
        context, len(h.layer), len(h.nets), h.nets, weights, cost
    )
    part_of_vertex: list[int] = graph.partition(context).get_partition()
    return part_of_vertex


def _integer_weights(weights: Array, maximum: float) -> list[int]:
    """Returns integers in proportion to the weights whose sum is about `maximum`.

    Weights that are integers already and have no larger sum are returned unchanged.
    """
    already_integers = np.all(weights == np.round(weights)) and weights.sum() <= maximum
    scale = 1.0 if already_integers else maximum / max(weights.sum(), 1e-300)
    return [max(1, int(w)) if w > 0 else 0 for w in np.round(weights * scale)]


@cache
def _initialized() -> Any:
    """Returns Mt-KaHyPar, initialised with one thread; it can be initialised only once per process."""
    import mtkahypar

    return mtkahypar.initialize(1, False)  # threads; whether to print warnings
