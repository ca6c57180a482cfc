"""Builds the hypergraphs of a network with every vertex and net, for other partitioners and for tests.

A *layer* has filters, also called units; a *map* is a feature map that layers read (network.py). raddle's
own solvers work on compressed models (counts.py, fine_rows.py); tests check those against this
file.

Coarse: a vertex is a filter; its weight is its work. The net of a filter joins the filter and all filters
that read its output.

Fine: a vertex is a cell, one input channel of a filter. Each filter also has a sum vertex without work: it
adds the partial results of the cells and owns the output. One net joins the sum vertex with all cells that
read the output. Another net joins the cells of the filter with its sum vertex.

Vertices are numbered layer by layer: filters, or cells filter by filter. In the fine hypergraph all sum
vertices follow, again layer by layer.

A map consists of *pieces*: the units of one layer, then those of the next, as a concatenation puts them. A
*dense* reader of a map is a layer, whose filters read all units of the map. An *elementwise* reader is an
operator such as an add, whose unit i reads only unit i of the map. It has no filters itself, so it is given
by the pieces of the input that it follows: its unit i is computed where unit i of these pieces is
(network.py).
"""

# l, t: layers; j: filter; k: channel of its input; v: map; p: piece of a map

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from raddle.errors import InputError
from raddle.searches.hypergraph.counts import CountModel
from raddle.searches.hypergraph.network import LayerNetwork

Array = np.ndarray
MAX_PINS = 400_000_000  # a pin is a vertex in a net


class Hypergraph(NamedTuple):
    """Vertices with weights, and nets with costs; a net is a set of vertices, its pins.

    The pins of net i are pins[net_start[i] : net_start[i + 1]].
    """

    weight: Array  # work, by vertex
    cost: Array  # elements, by net
    net_start: Array
    pins: Array  # vertices, net by net


def km1(h: Hypergraph, part: Array) -> int:
    """Returns the connectivity of a partition: the sum over nets of (parts in the net - 1) x cost.

    part: the part (device) of every vertex.
    """
    count = int(part.max()) + 1
    net = np.repeat(np.arange(len(h.cost), dtype=np.int64), np.diff(h.net_start))
    # Each pair of a net and a part that has pins of it, once, as one number
    joined = np.unique(net * count + part[h.pins])
    parts = np.bincount(joined // count, minlength=len(h.cost))
    return int((h.cost * (parts - 1)).sum())


def coarse(network: LayerNetwork, m: CountModel) -> Hypergraph:
    """Returns the coarse hypergraph: one vertex per filter."""
    first = _list_starts([layer.units for layer in network.layers])  # of each layer
    vertices = [np.arange(a, b) for a, b in pairwise(first)]

    def nets() -> Iterator[tuple[int, Array]]:
        """Yields the cost and the pins of each net."""
        for v in network.maps:
            readers = [vertices[t] for t in v.dense_readers]
            elementwise = [
                np.concatenate([vertices[p.layer] for p in reader_pieces])
                for reader_pieces in v.elementwise_readers
            ]
            units = np.concatenate([vertices[p.layer] for p in v.pieces])
            for unit, vertex in enumerate(units):
                same_units = [np.array([vertex, *(other[unit] for other in elementwise)])]
                yield v.unit_elements, np.unique(np.concatenate([*same_units, *readers]))

    # About how many pins there are
    size = sum(
        v.units * (1 + sum(network.layers[t].units for t in v.dense_readers)) for v in network.maps
    )
    return _build(np.repeat(m.work, m.units), nets(), size)


def fine(network: LayerNetwork, m: CountModel) -> Hypergraph:
    """Returns the fine hypergraph: one vertex per cell, and one per filter for its sum."""
    cells = [layer.units * channel_count(network, l) for l, layer in enumerate(network.layers)]
    first = _list_starts(cells)
    first_sum = first[-1] + _list_starts([layer.units for layer in network.layers])

    def cell_vertices(l: int) -> Array:
        """Returns the vertices of layer l's cells, [filter, channel]."""
        shape = network.layers[l].units, channel_count(network, l)
        return np.arange(first[l], first[l + 1]).reshape(shape)

    def nets() -> Iterator[tuple[int, Array]]:
        """Yields the cost and the pins of each net."""
        for v, feature_map in enumerate(network.maps):
            units = np.concatenate(
                [first_sum[p.layer] + np.arange(p.units) for p in feature_map.pieces]
            )
            elementwise = [
                np.concatenate([first_sum[p.layer] + np.arange(p.units) for p in reader_pieces])
                for reader_pieces in feature_map.elementwise_readers
            ]
            # For each dense reader: its cells [filter, channel], and where the channels of this map begin
            grids = [
                (cell_vertices(t), channel_start(network, t, v)) for t in feature_map.dense_readers
            ]
            for unit, vertex in enumerate(units):
                pins = [np.array([vertex, *(other[unit] for other in elementwise)])]
                pins += [grid[:, start + unit] for grid, start in grids]
                yield feature_map.unit_elements, np.unique(np.concatenate(pins))
        for l, layer in enumerate(network.layers):
            for j, row in enumerate(cell_vertices(l)):
                yield layer.unit_elements, np.append(row, first_sum[l] + j)

    cell_work = [m.work[l] / channel_count(network, l) for l in range(m.num_layers)]
    weight = np.concatenate([np.repeat(cell_work, cells), np.zeros(int(m.units.sum()))])
    return _build(weight, nets(), 2 * sum(cells))


def channel_count(network: LayerNetwork, l: int) -> int:
    """Returns how many channels a filter of layer l sums over: the units of the maps that it reads.

    A layer that reads only the network's input has the channels of that input instead.
    """
    map_units = [network.maps[v].units for v in maps_read(network)[l]]
    total = max(map_units, default=0) if _reads_in_turn(network, l) else sum(map_units)
    return total or network.layers[l].channels


def channel_start(network: LayerNetwork, l: int, v: int) -> int:
    """Returns where the channels of map v begin among all channels that layer l reads."""
    maps = maps_read(network)[l]
    return (
        0
        if _reads_in_turn(network, l)
        else sum(network.maps[u].units for u in maps[: maps.index(v)])
    )


def _reads_in_turn(network: LayerNetwork, l: int) -> bool:
    """Whether each operator of a layer reads a map of its own, like the time steps of a recurrent layer."""
    layer = network.layers[l]
    return len(layer.ops) > 1 and layer.parameters > 0


def maps_read(network: LayerNetwork) -> list[list[int]]:
    """Returns, for each layer, the maps of which it is a dense reader, in order."""
    maps_by_layer: list[list[int]] = [[] for _ in network.layers]
    for v, feature_map in enumerate(network.maps):
        for t in feature_map.dense_readers:
            maps_by_layer[t].append(v)
    return maps_by_layer


def _list_starts(sizes: list[int]) -> Array:
    """Returns where lists of these sizes begin, one after the other, and where the last ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _build(weight: Array, nets: Iterator[tuple[int, Array]], pins: int) -> Hypergraph:
    """Returns the hypergraph of nets, each (cost, its pins); pins: about how many all nets have."""
    if pins > MAX_PINS:
        raise InputError(
            f"the hypergraph would have about {pins} pins, more than {MAX_PINS}: take the coarse one "
            "(--grain coarse) or, if it is too large itself, a smaller model."
        )
    costs, lists = zip(*nets, strict=True)
    return Hypergraph(
        weight,
        np.array(costs, np.int64),
        _list_starts([len(net_pins) for net_pins in lists]),
        np.concatenate(lists),
    )
