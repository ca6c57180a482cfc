"""Mt-KaHyPar on blocks of filters: a coarse partition by a general hypergraph partitioner.

Filters of a layer are interchangeable, so a few dozen blocks of them are vertices enough; a net joins a
block of a map, all blocks of the layers that read all of it, and the same block of those that read alike.
"""

# l, t: layers; b: block of a layer; v: map; p: part

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph.counts import Array, CountModel

MAX_WEIGHT = 1 << 30  # its weights have 32 bits; the connectivity of all nets has to fit, too


class BlockHypergraph(NamedTuple):
    """The hypergraph of blocks."""

    layer: Array  # by vertex
    units: Array  # by vertex
    nets: list[list[int]]  # vertices
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
    """Counts [layer, part] of Mt-KaHyPar's partition; it may break the balance where blocks are coarse."""
    h = build_hypergraph(m, blocks)
    found = np.array(run_mtkahypar(m, h, parts, epsilon, seed, shares=shares), np.int64)
    x = np.zeros((m.num_layers, parts), np.int64)
    np.add.at(x, (h.layer, found), h.units)
    return x


def build_hypergraph(m: CountModel, blocks: int) -> BlockHypergraph:
    """At most so many blocks a layer, of nearly equal size."""
    sizes = [np.diff(np.arange(b + 1) * n // b) for n in m.units for b in [min(n, blocks)]]
    at = np.cumsum([0, *(len(own) for own in sizes)])
    nets, cost = [], []
    for v in range(len(m.cost)):
        dense = m.dense_layer[m.dense_start[v] : m.dense_start[v + 1]]
        readers = {int(u) for t in dense for u in range(at[t], at[t + 1])}
        alike = slice(m.elementwise_start[v], m.elementwise_start[v + 1])
        for i, l in enumerate(m.piece_layer[m.piece_start[v] : m.piece_start[v + 1]]):
            same = m.elementwise_layer[alike][m.elementwise_piece[alike] == i]
            for b, units in enumerate(sizes[l]):
                pins = readers | {int(at[t]) + b for t in (l, *same)}
                if len(pins) > 1:
                    nets.append(sorted(pins))
                    cost.append(int(m.cost[v] * units))
    layer = np.repeat(np.arange(m.num_layers), np.diff(at))
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
    """The part of every vertex."""
    if parts == 1 or not h.nets:
        return [0] * len(h.layer)
    import mtkahypar  # type: ignore[import-not-found]

    machine = _initialized()
    mtkahypar.set_seed(seed)
    context = machine.context_from_preset(mtkahypar.PresetType.DETERMINISTIC_QUALITY)
    context.logging = False
    context.set_partitioning_parameters(parts, epsilon, mtkahypar.Objective.KM1)
    weights = _integer_weights(m.work[h.layer] * h.units, MAX_WEIGHT / 2)
    if shares is not None:
        limit = (1 + epsilon) * sum(weights) / sum(shares)
        context.set_individual_target_block_weights([math.ceil(limit * s) for s in shares])
    unit = math.gcd(*h.cost)
    most = MAX_WEIGHT / min(parts, max(len(net) for net in h.nets))
    cost = _integer_weights(np.array(h.cost) / unit, most)
    graph = machine.create_hypergraph(context, len(h.layer), len(h.nets), h.nets, weights, cost)
    found: list[int] = graph.partition(context).get_partition()
    return found


def _integer_weights(weights: Array, most: float) -> list[int]:
    """Whole numbers in proportion whose sum stays below `most`, as they are where they do."""
    whole = np.all(weights == np.round(weights)) and weights.sum() <= most
    scale = 1.0 if whole else most / max(weights.sum(), 1e-300)
    return [max(1, int(w)) if w > 0 else 0 for w in np.round(weights * scale)]


@cache
def _initialized() -> Any:
    """Mt-KaHyPar's threads are those of the first call in a process."""
    import mtkahypar

    return mtkahypar.initialize(1, False)
