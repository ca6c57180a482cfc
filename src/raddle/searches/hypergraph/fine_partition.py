"""Describes a fine partition by each part's filters and channels of every layer; counts volume and work.

A *part* is a device's share. A *fine* partition may put the input channels of one filter into different
parts. A *cell* is one input channel of one filter. Every cell has a part that computes it, and every filter
an *owner*, the part that sums the partial results of its cells. A *map* is a feature map that layers read;
its units are the outputs of filters. It consists of *pieces*: the units of one layer, then those of the
next. Its *dense* readers are layers, whose cells read its channels. An *elementwise* reader is an operator
such as an add: a part that owns unit i of it needs unit i of the map (network.py). A part receives the
units of maps that its cells read and it does not own. It sends a partial result for every filter that it
computes cells of and does not own. Operators after a layer (batch norm, relu, pool, add) run where the
owner is. A coarse partition is the special case in which all cells of a filter are in the part of its
owner.
"""

# l, t: layers; v: map. Channels of a layer are numbered through all maps that it reads, one after the
# other.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raddle.searches.baselines.filters import ChannelLayout
from raddle.searches.hypergraph.cells import Cells
from raddle.searches.hypergraph.explicit import channel_count, channel_start, maps_read
from raddle.searches.hypergraph.network import FeatureMap, LayerNetwork

Array = np.ndarray
Ranges = tuple[tuple[int, int], ...]  # (begin, end) of indices


class ComputeBlock(NamedTuple):
    """Cells that a part computes: all pairs of these filters and these channels."""

    part: int
    filters: Ranges
    channels: Ranges


class FineLayer(NamedTuple):
    """The cells of a layer by part (a part may have several blocks), and the owners of its filters."""

    blocks: tuple[ComputeBlock, ...]
    owners: ChannelLayout  # ranges of filters (cuts), and the owner of each range (parts)


@dataclass(frozen=True)
class FinePartition:
    """A partition of all layers."""

    parts: int
    layers: tuple[FineLayer, ...]

    @property
    def layouts(self) -> list[ChannelLayout]:
        """The owners of the filters of each layer; operators after the layer run there."""
        return [layer.owners for layer in self.layers]


def fine_volume(network: LayerNetwork, partition: FinePartition) -> int:
    """Returns the elements that cross parts in a forward: of maps and of partial results."""
    owned_masks = [
        _owned_mask(fine_layer.owners, partition.parts) for fine_layer in partition.layers
    ]
    read_masks = [
        _used_mask(partition, l, channel_count(network, l), 1) for l in range(len(partition.layers))
    ]  # by layer: [part, channel]
    total = 0
    for v, feature_map in enumerate(network.maps):
        needed = np.zeros((partition.parts, feature_map.units), bool)
        for t in feature_map.dense_readers:
            start = channel_start(network, t, v)
            needed |= read_masks[t][:, start : start + feature_map.units]
        for reader_pieces in feature_map.elementwise_readers:
            needed |= np.concatenate([owned_masks[piece.layer] for piece in reader_pieces], 1)
        owned = np.concatenate([owned_masks[piece.layer] for piece in feature_map.pieces], 1)
        total += feature_map.unit_elements * int((needed & ~owned).sum())
    for l, layer in enumerate(network.layers):
        computed = _used_mask(partition, l, layer.units, 0)
        total += layer.unit_elements * int((computed & ~owned_masks[l]).sum())
    return total


def fine_work(network: LayerNetwork, partition: FinePartition, work: Sequence[float]) -> Array:
    """Returns the work of every part; work: of every layer."""
    part_work = np.zeros(partition.parts)
    for l, layer in enumerate(partition.layers):
        cell_work = work[l] / (network.layers[l].units * channel_count(network, l))
        for part, filters, read_channels in layer.blocks:
            part_work[part] += cell_work * total_length(filters) * total_length(read_channels)
    return part_work


def to_cells(network: LayerNetwork, partition: FinePartition) -> Cells:
    """Returns the part of every cell and the owner of every filter, as arrays."""
    cells = []
    for l, (layer, fine_layer) in enumerate(zip(network.layers, partition.layers, strict=True)):
        # int16: a layer may have 16 million cells
        layer_cells = np.full((layer.units, channel_count(network, l)), -1, np.int16)
        for part, filters, read_channels in fine_layer.blocks:
            layer_cells[np.ix_(_indices(filters), _indices(read_channels))] = part
        cells.append(layer_cells)
    return Cells(
        cells, [owners_of_layout(partition_layer.owners) for partition_layer in partition.layers]
    )


def is_complete(network: LayerNetwork, partition: FinePartition) -> bool:
    """Whether every cell of every layer is in exactly one part, and every filter has an owner."""
    for l, (layer, fine_layer) in enumerate(zip(network.layers, partition.layers, strict=True)):
        count = np.zeros((layer.units, channel_count(network, l)), np.int16)
        for _, filters, read_channels in fine_layer.blocks:
            count[np.ix_(_indices(filters), _indices(read_channels))] += 1
        if (count != 1).any() or fine_layer.owners.cuts[-1] != layer.units:
            return False
    return True


def single_input_map(network: LayerNetwork, l: int) -> FeatureMap | None:
    """Returns the only map that layer l reads, if the channels of its filters may be in several parts.

    None if they may not: the layer does not read exactly one map, has several operators, or has a number of
    channels that is no multiple of the map's units.
    """
    layer, maps = network.layers[l], maps_read(network)[l]
    if len(maps) != 1 or len(layer.ops) != 1 or layer.channels % network.maps[maps[0]].units:
        return None
    return network.maps[maps[0]]


def ranges(mask: Array) -> Ranges:
    """Returns the ranges in which a mask is True.

    >>> ranges(np.array([True, True, False, True]))
    ((0, 2), (3, 4))
    """
    ends = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return tuple((int(a), int(b)) for a, b in zip(ends[::2], ends[1::2], strict=True))


def total_length(index_ranges: Ranges) -> int:
    """Returns the number of indices in the ranges."""
    return sum(b - a for a, b in index_ranges)


def owners_of_layout(layout: ChannelLayout) -> Array:
    """Returns the part of every filter."""
    return np.repeat(layout.parts, np.diff(layout.cuts))


def _owned_mask(layout: ChannelLayout, parts: int) -> Array:
    """Returns a mask [part, filter]: which part owns which filter."""
    mask: Array = owners_of_layout(layout)[None, :] == np.arange(parts)[:, None]
    return mask


def _used_mask(partition: FinePartition, l: int, size: int, side: int) -> Array:
    """Returns a mask [part, index] of the filters (side 0) or channels (side 1) of the part's cells."""
    mask = np.zeros((partition.parts, size), bool)
    for part, *sides in partition.layers[l].blocks:
        for a, b in sides[side]:
            mask[part, a:b] = True
    return mask


def _indices(index_ranges: Ranges) -> Array:
    """Returns all indices of the ranges, in order."""
    return np.concatenate([np.arange(a, b) for a, b in index_ranges])
