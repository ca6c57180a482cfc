"""Hypergraphs with every vertex and net spelt out: to check compressed counts, and for other partitioners.

Coarse: a vertex is a filter, with its work; the net of a filter's map joins it and all filters that read
it.

Fine: a vertex is a channel of a filter; besides, each filter has a reduction vertex without work, which
sums its partial results and owns its map. The net of a map joins that vertex and the channels of filters
that read it; the net of a filter's sum, before the pool, joins its channels and that vertex.

Vertices are numbered layer by layer: filters, or pairs of filter and channel row by row; fine ones end with
all reduction vertices, again layer by layer.
"""

# l, t: layers; j: filter; k: channel of its input; v: map

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from raddle.errors import InputError
from raddle.searches.hypergraph.counts import CountModel
from raddle.searches.hypergraph.network import LayerNetwork

Array = np.ndarray
MAX_PINS = 400_000_000


class Hypergraph(NamedTuple):
    """Nets as ranges of `pins`, which begin at `at`."""

    weight: Array  # of vertices
    cost: Array  # of nets
    net_start: Array
    pins: Array


def km1(h: Hypergraph, part: Array) -> int:
    """The sum of (parts in a net - 1) x its cost."""
    count = int(part.max()) + 1
    net = np.repeat(np.arange(len(h.cost), dtype=np.int64), np.diff(h.net_start))
    joined = np.unique(net * count + part[h.pins])
    parts = np.bincount(joined // count, minlength=len(h.cost))
    return int((h.cost * (parts - 1)).sum())


def coarse(network: LayerNetwork, m: CountModel) -> Hypergraph:
    """A vertex a filter."""
    first = _list_starts([layer.units for layer in network.layers])
    vertices = [np.arange(a, b) for a, b in pairwise(first)]

    def nets() -> Iterator[tuple[int, Array]]:
        for v in network.maps:
            readers = [vertices[t] for t in v.dense_readers]
            elementwise = [
                np.concatenate([vertices[p.layer] for p in form]) for form in v.elementwise_readers
            ]
            units = np.concatenate([vertices[p.layer] for p in v.pieces])
            for unit, vertex in enumerate(units):
                same_units = [np.array([vertex, *(other[unit] for other in elementwise)])]
                yield v.unit_elements, np.unique(np.concatenate([*same_units, *readers]))

    size = sum(
        v.units * (1 + sum(network.layers[t].units for t in v.dense_readers)) for v in network.maps
    )
    return _build(np.repeat(m.work, m.units), nets(), size)


def fine(network: LayerNetwork, m: CountModel) -> Hypergraph:
    """A vertex a channel of a filter, and one for each filter's sum."""
    cells = [layer.units * channel_count(network, l) for l, layer in enumerate(network.layers)]
    first = _list_starts(cells)
    first_sum = first[-1] + _list_starts([layer.units for layer in network.layers])

    def cell(l: int) -> Array:
        shape = network.layers[l].units, channel_count(network, l)
        return np.arange(first[l], first[l + 1]).reshape(shape)

    def nets() -> Iterator[tuple[int, Array]]:
        for v, feature_map in enumerate(network.maps):
            units = np.concatenate(
                [first_sum[p.layer] + np.arange(p.units) for p in feature_map.pieces]
            )
            elementwise = [
                np.concatenate([first_sum[p.layer] + np.arange(p.units) for p in form])
                for form in feature_map.elementwise_readers
            ]
            grids = [(cell(t), channel_start(network, t, v)) for t in feature_map.dense_readers]
            for unit, vertex in enumerate(units):
                pins = [np.array([vertex, *(other[unit] for other in elementwise)])]
                pins += [grid[:, start + unit] for grid, start in grids]
                yield feature_map.unit_elements, np.unique(np.concatenate(pins))
        for l, layer in enumerate(network.layers):
            for j, row in enumerate(cell(l)):
                yield layer.unit_elements, np.append(row, first_sum[l] + j)

    cell_work = [m.work[l] / channel_count(network, l) for l in range(m.num_layers)]
    weight = np.concatenate([np.repeat(cell_work, cells), np.zeros(int(m.units.sum()))])
    return _build(weight, nets(), 2 * sum(cells))


def channel_count(network: LayerNetwork, l: int) -> int:
    """Units that a filter of a layer sums over: those of the maps that it reads, or of the input."""
    map_units = [network.maps[v].units for v in maps_read(network)[l]]
    total = max(map_units, default=0) if _reads_in_turn(network, l) else sum(map_units)
    return total or network.layers[l].channels


def channel_start(network: LayerNetwork, l: int, v: int) -> int:
    """Where the channels of a map begin among all that a layer reads."""
    maps = maps_read(network)[l]
    return (
        0
        if _reads_in_turn(network, l)
        else sum(network.maps[u].units for u in maps[: maps.index(v)])
    )


def _reads_in_turn(network: LayerNetwork, l: int) -> bool:
    """Whether the operators of a layer read maps of their own, as steps of a recurrent layer do."""
    layer = network.layers[l]
    return len(layer.ops) > 1 and layer.parameters > 0


def maps_read(network: LayerNetwork) -> list[list[int]]:
    """By layer, the maps that it reads all of, in order."""
    maps_by_layer: list[list[int]] = [[] for _ in network.layers]
    for v, feature_map in enumerate(network.maps):
        for t in feature_map.dense_readers:
            maps_by_layer[t].append(v)
    return maps_by_layer


def _list_starts(sizes: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _build(weight: Array, nets: Iterator[tuple[int, Array]], pins: int) -> Hypergraph:
    if pins > MAX_PINS:
        raise InputError(
            f"the hypergraph would have about {pins} pins, more than {MAX_PINS}: take the coarse one."
        )
    costs, lists = zip(*nets, strict=True)
    return Hypergraph(
        weight,
        np.array(costs, np.int64),
        _list_starts([len(net_pins) for net_pins in lists]),
        np.concatenate(lists),
    )
