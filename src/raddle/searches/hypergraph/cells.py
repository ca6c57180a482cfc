"""Fine partitions spelt out: the part of every channel of every filter, and of every filter's sum.

cells[l][j, k] is the part that multiplies channel k of filter j of layer l; owners[l][j] the part that sums
them, and has the map from then on.
"""

# l: layer; j: filter; k: channel; p: part; v: map

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
from raddle.searches.hypergraph.layouts import channel_tiles, layout_of_owners, place_operators
from raddle.searches.hypergraph.network import FeatureMap, LayerNetwork

Array = np.ndarray


class Cells(NamedTuple):
    """A fine partition."""

    cells: Sequence[Array]
    owners: Sequence[Array]


class PartTraffic(NamedTuple):
    """Elements of a forward, by what is sent, and by the part that receives them."""

    sent: dict[str, int]  # by map, and by layer what its sums need
    received: Array


def count_traffic(network: LayerNetwork, partition: Cells, parts: int) -> PartTraffic:
    """What crosses parts; partial sums are received by the owner."""
    of: dict[str, int] = {}
    received = np.zeros(parts, np.int64)
    for v, read in enumerate(network.maps):
        has = _owned_mask(read, partition.owners, parts)
        needs = np.zeros_like(has)
        for t in read.dense_readers:
            start = channel_start(network, t, v)
            needs |= _used_mask(partition.cells[t][:, start : start + read.units], parts)
        for form in read.elementwise_readers:
            needs |= _owned_mask(read, partition.owners, parts, form)
        amount = (needs & ~has).sum(axis=1) * read.unit_elements
        of[read.name] = int(amount.sum())
        received += amount
    for l, layer in enumerate(network.layers):
        made = _used_mask(partition.cells[l].T, parts)
        owner = np.asarray(partition.owners[l])
        made[owner, np.arange(layer.units)] = False
        amount = made.sum(axis=0) * layer.unit_elements
        of[f"{layer.name}, sums"] = int(amount.sum())
        received += np.bincount(owner, weights=amount, minlength=parts).astype(np.int64)
    return PartTraffic({name: n for name, n in of.items() if n}, received)


def _owned_mask(
    read: FeatureMap, owners: Sequence[Array], parts: int, form: object = None
) -> Array:
    """By part and unit, whether it is there."""
    pieces = read.pieces if form is None else form
    own = np.concatenate([owners[piece.layer] for piece in pieces])  # type: ignore[attr-defined]
    found = np.zeros((parts, len(own)), bool)
    found[own, np.arange(len(own))] = True
    return found


def _used_mask(cells: Array, parts: int) -> Array:
    """By part and column, whether the part has a cell of it."""
    columns = cells.shape[1]
    found = np.zeros(parts * columns, bool)
    found[(cells.astype(np.int64) * columns + np.arange(columns)).ravel()] = True
    return found.reshape(parts, columns)


def cell_work(network: LayerNetwork, work: Array, partition: Cells, parts: int) -> Array:
    """Work by part; `work` is that of one filter, by layer."""
    found = np.zeros(parts)
    for l, own in enumerate(partition.cells):
        found += np.bincount(own.ravel(), minlength=parts) * work[l] / own.shape[1]
    return found


def cell_tiles(graph: Graph, network: LayerNetwork, partition: Cells) -> tuple[Tiles, Tiles]:
    """The tiles of a plan that computes a fine partition, and where it sums."""
    own: dict[str, Tiling] = {}
    sums: Tiles = {}
    parts = [layout_of_owners(np.asarray(owners)) for owners in partition.owners]
    ops = {op.name: op for op in graph.ops}
    for l, layer in enumerate(network.layers):
        apart = _rectangles(partition.cells[l])
        for name in layer.ops:
            if layer.parameters and _can_split_channels(ops[name], partition.cells[l]):
                own[name] = _tiling(ops[name], apart, partition.cells[l].shape)
                sums[name] = channel_tiles(ops[name], network.op_pieces[name], parts)
    return place_operators(graph, network, parts, own), sums


def _can_split_channels(op: Op, cells: Array) -> bool:
    """Whether channels of cells are channels of an operator; else it goes with its filters."""
    return dim_of(op, "k") is not None and size_of(op, "k") % cells.shape[1] == 0


class Rectangle(NamedTuple):
    """Filters and channels that are in one part."""

    filters: tuple[int, int]
    channels: tuple[int, int]
    part: int


def _rectangles(cells: Array) -> list[Rectangle]:
    """Runs of equal rows, cut where the part changes."""
    rows = [0, *(np.flatnonzero((cells[1:] != cells[:-1]).any(axis=1)) + 1).tolist(), len(cells)]
    found = []
    for a, b in pairwise(rows):
        layout = layout_of_owners(cells[a])
        for (lo, hi), part in zip(pairwise(layout.cuts), layout.parts, strict=True):
            found.append(Rectangle((a, b), (lo, hi), part))
    return found


def _tiling(op: Op, apart: Sequence[Rectangle], shape: tuple[int, ...]) -> Irregular:
    c, k = dim_of(op, "c"), dim_of(op, "k")
    assert c is not None
    assert k is not None
    scales = size_of(op, "c") // shape[0], size_of(op, "k") // shape[1]
    tiles = []
    for own in apart:
        lo, hi = list(op.space.full.lo), list(op.space.full.hi)
        lo[c], hi[c] = (scales[0] * at for at in own.filters)
        lo[k], hi[k] = (scales[1] * at for at in own.channels)
        tiles.append(Tile(Box(tuple(lo), tuple(hi)), own.part))
    return Irregular(tuple(tiles))


def partition_from_vector(network: LayerNetwork, part: Array) -> Cells | list[Array] | None:
    """A partitioner's answer: of filters, by layer; of channels and sums, as cells; or neither."""
    units = [layer.units for layer in network.layers]
    sizes = [n * channel_count(network, l) for l, n in enumerate(units)]
    if len(part) == sum(units):
        return np.split(part, np.cumsum(units)[:-1])
    if len(part) == sum(sizes) + sum(units):
        cells, sums = part[: sum(sizes)], part[sum(sizes) :]
        apart = np.split(cells, np.cumsum(sizes)[:-1])
        return Cells(
            [own.reshape(n, -1) for own, n in zip(apart, units, strict=True)],
            np.split(sums, np.cumsum(units)[:-1]),
        )
    return None
