"""Computes what fine partitions send, the work of their parts, and their tiles, cell by cell.

In a *fine* partition the input channels of a filter may be in different parts (a *part* is a device's
share); in a *coarse* one a filter is whole. A *cell* is one input channel of one filter. cells[l][j, k] is
the part that multiplies channel k of filter j of layer l. owners[l][j] is the part that sums the partial
results of filter j and then has its output. A *unit* of a layer is a filter. A *map* is a feature map, a
value that layers read. It consists of *pieces*: the units of one layer, then those of the next, as a
concatenation puts them. A *dense* reader of a map is a layer, whose cells read its channels. An
*elementwise* reader is an operator such as an add: a part that owns unit i of it needs unit i of the map
(network.py). A *layout* lists ranges of filters (`cuts`) and the part of each range (`parts`).
"""

# l: layer; t: layer that reads a map; j: filter; k: channel; p: part; v: map

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Irregular, Tile, Tiling
from raddle.searches.grids import Tiles, dim_of, size_of
from raddle.searches.hypergraph.explicit import channel_count, channel_start
from raddle.searches.hypergraph.filter_layouts import (
    channel_tiles,
    layout_of_owners,
    place_operators,
)
from raddle.searches.hypergraph.network import FeatureMap, LayerNetwork

Array = np.ndarray


class Cells(NamedTuple):
    """A fine partition, as arrays of part numbers."""

    cells: Sequence[Array]  # by layer: [filter, channel]
    owners: Sequence[Array]  # by layer: [filter]


class PartTraffic(NamedTuple):
    """Elements that cross parts in a forward, added up in two ways."""

    sent: dict[str, int]  # by name of the map; under "LAYER, sums": the layer's partial results
    received: Array  # by part


def count_traffic(network: LayerNetwork, partition: Cells, parts: int) -> PartTraffic:
    """Counts what crosses parts: maps to the cells that read them, partial results to the owners."""
    sent: dict[str, int] = {}
    received = np.zeros(parts, np.int64)
    for v, feature_map in enumerate(network.maps):
        owned = _owned_mask(feature_map, partition.owners, parts)
        needed = np.zeros_like(owned)
        for t in feature_map.dense_readers:
            start = channel_start(network, t, v)
            needed |= _used_mask(partition.cells[t][:, start : start + feature_map.units], parts)
        for reader in feature_map.elementwise_readers:
            needed |= _owned_mask(feature_map, partition.owners, parts, reader)
        elements = (needed & ~owned).sum(axis=1) * feature_map.unit_elements  # by receiving part
        sent[feature_map.name] = int(elements.sum())
        received += elements
    for l, layer in enumerate(network.layers):
        computed = _used_mask(partition.cells[l].T, parts)
        owner = np.asarray(partition.owners[l])
        computed[owner, np.arange(layer.units)] = False  # the owner does not send to itself
        elements = computed.sum(axis=0) * layer.unit_elements  # by filter
        sent[f"{layer.name}, sums"] = int(elements.sum())
        received += np.bincount(owner, weights=elements, minlength=parts).astype(np.int64)
    return PartTraffic({name: n for name, n in sent.items() if n}, received)


def _owned_mask(
    feature_map: FeatureMap, owners: Sequence[Array], parts: int, pieces_read: object = None
) -> Array:
    """Returns a mask [part, unit]: which part owns which unit of the map.

    pieces_read: pieces of an elementwise reader, whose units are taken instead of the map's.
    """
    pieces = feature_map.pieces if pieces_read is None else pieces_read
    owner_of_unit = np.concatenate([owners[piece.layer] for piece in pieces])  # type: ignore[attr-defined]
    mask = np.zeros((parts, len(owner_of_unit)), bool)
    mask[owner_of_unit, np.arange(len(owner_of_unit))] = True
    return mask


def _used_mask(cells: Array, parts: int) -> Array:
    """Returns a mask [part, column]: whether the part has a cell in the column.

    A column of [filter, channel] is a channel; of the transposed array it is a filter.
    """
    columns = cells.shape[1]
    mask = np.zeros(parts * columns, bool)
    mask[(cells.astype(np.int64) * columns + np.arange(columns)).ravel()] = True
    return mask.reshape(parts, columns)


def cell_work(network: LayerNetwork, work: Array, partition: Cells, parts: int) -> Array:
    """Returns the work of each part; `work` is the work of one filter, by layer."""
    part_work = np.zeros(parts)
    for l, layer_cells in enumerate(partition.cells):
        part_work += (
            np.bincount(layer_cells.ravel(), minlength=parts) * work[l] / layer_cells.shape[1]
        )
    return part_work


def cell_tiles(graph: Graph, network: LayerNetwork, partition: Cells) -> tuple[Tiles, Tiles]:
    """Returns the tiles of a plan for a fine partition, and the tiles where partial results are summed."""
    given_tiles: dict[str, Tiling] = {}
    sums: Tiles = {}
    layouts = [layout_of_owners(np.asarray(owners)) for owners in partition.owners]
    ops = {op.name: op for op in graph.ops}
    for l, layer in enumerate(network.layers):
        rectangles = _rectangles(partition.cells[l])
        for name in layer.ops:
            # parameters is 0 for attention heads: they are not split by channel.
            if layer.parameters and _can_split_channels(ops[name], partition.cells[l]):
                given_tiles[name] = _tiling(ops[name], rectangles, partition.cells[l].shape)
                sums[name] = channel_tiles(ops[name], network.op_pieces[name], layouts)
    return place_operators(graph, network, layouts, given_tiles), sums


def _can_split_channels(op: Op, cells: Array) -> bool:
    """Whether the operator's dimension k can be cut between cells: a cell may be several elements of k, as
    after a flatten. If not, the operator is split by filters."""
    return dim_of(op, "k") is not None and size_of(op, "k") % cells.shape[1] == 0


class Rectangle(NamedTuple):
    """A block of cells that are all in one part."""

    filters: tuple[int, int]  # begin, end
    channels: tuple[int, int]  # begin, end
    part: int


def _rectangles(cells: Array) -> list[Rectangle]:
    """Returns rectangles that cover all cells: runs of equal rows, cut where the part changes."""
    rows = [0, *(np.flatnonzero((cells[1:] != cells[:-1]).any(axis=1)) + 1).tolist(), len(cells)]
    rectangles = []
    for a, b in pairwise(rows):
        layout = layout_of_owners(cells[a])
        for (lo, hi), part in zip(pairwise(layout.cuts), layout.parts, strict=True):
            rectangles.append(Rectangle((a, b), (lo, hi), part))
    return rectangles


def _tiling(op: Op, rectangles: Sequence[Rectangle], shape: tuple[int, ...]) -> Irregular:
    """Returns one tile per rectangle; shape: the numbers of filters and of channels of the layer."""
    c, k = dim_of(op, "c"), dim_of(op, "k")
    assert c is not None
    assert k is not None
    # Elements of the operator's dimensions c and k per filter and per cell
    scales = size_of(op, "c") // shape[0], size_of(op, "k") // shape[1]
    tiles = []
    for rectangle in rectangles:
        lo, hi = list(op.space.full.lo), list(op.space.full.hi)
        lo[c], hi[c] = (scales[0] * at for at in rectangle.filters)
        lo[k], hi[k] = (scales[1] * at for at in rectangle.channels)
        tiles.append(Tile(Box(tuple(lo), tuple(hi)), rectangle.part))
    return Irregular(tuple(tiles))


def partition_from_vector(network: LayerNetwork, part: Array) -> Cells | list[Array] | None:
    """Reads the part of each vertex, as another partitioner returns it for a hypergraph of explicit.py.

    Returns the owners of filters by layer (coarse), Cells (fine), or None if the length fits neither.
    """
    units = [layer.units for layer in network.layers]
    sizes = [n * channel_count(network, l) for l, n in enumerate(units)]
    if len(part) == sum(units):
        return np.split(part, np.cumsum(units)[:-1])
    if len(part) == sum(sizes) + sum(units):
        cells, sum_owners = part[: sum(sizes)], part[sum(sizes) :]
        cell_lists = np.split(cells, np.cumsum(sizes)[:-1])
        return Cells(
            [layer_cells.reshape(n, -1) for layer_cells, n in zip(cell_lists, units, strict=True)],
            np.split(sum_owners, np.cumsum(units)[:-1]),
        )
    return None
