"""Fine partitions: every pair of filter and channel has a part, and every filter an owner of its sum.

A part computes rectangles of pairs. It receives of every map the units that its pairs read and it does not
own, and sends, for every filter that it computes a partial result of and does not own, that result. What
follows a layer (batch norm, relu, pool, add) is where the owner is. A coarse partition is the special case
of a part that reads all channels of the filters that it owns.
"""

# l, t: layers; p: part; j: filter; k: channel, in units of the maps that a layer reads, one after the other

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
Ranges = tuple[tuple[int, int], ...]


class Block(NamedTuple):
    """What a part computes of a layer: all pairs of these filters and these channels."""

    part: int
    filters: Ranges
    channels: Ranges


class FineLayer(NamedTuple):
    """The pairs of a layer by part (a part may have several blocks), and who owns the filters' sums."""

    blocks: tuple[Block, ...]
    owners: ChannelLayout


@dataclass(frozen=True)
class FinePartition:
    """By layer, where its pairs and its filters are."""

    parts: int
    layers: tuple[FineLayer, ...]

    @property
    def layouts(self) -> list[ChannelLayout]:
        """Where the filters of each layer are summed, and with them all that follows."""
        return [own.owners for own in self.layers]


def fine_volume(network: LayerNetwork, partition: FinePartition) -> int:
    """Elements that cross parts in a forward: maps that are read, and partial results."""
    owned = [_owned(own.owners, partition.parts) for own in partition.layers]
    read = [
        _marked(partition, l, channel_count(network, l), 1) for l in range(len(partition.layers))
    ]  # by layer [part, channel]
    total = 0
    for v, own in enumerate(network.maps):
        needed = np.zeros((partition.parts, own.units), bool)
        for t in own.dense_readers:
            at = channel_start(network, t, v)
            needed |= read[t][:, at : at + own.units]
        for form in own.elementwise_readers:
            needed |= np.concatenate([owned[piece.layer] for piece in form], 1)
        held = np.concatenate([owned[piece.layer] for piece in own.pieces], 1)
        total += own.unit_elements * int((needed & ~held).sum())
    for l, layer in enumerate(network.layers):
        computed = _marked(partition, l, layer.units, 0)
        total += layer.unit_elements * int((computed & ~owned[l]).sum())
    return total


def fine_work(network: LayerNetwork, partition: FinePartition, work: Sequence[float]) -> Array:
    """Work of every part, given that of every layer."""
    found = np.zeros(partition.parts)
    for l, own in enumerate(partition.layers):
        each = work[l] / (network.layers[l].units * channel_count(network, l))
        for part, filters, read in own.blocks:
            found[part] += each * length(filters) * length(read)
    return found


def spelt_out(network: LayerNetwork, partition: FinePartition) -> Cells:
    """The part of every pair and of every filter."""
    cells = []
    for l, (layer, own) in enumerate(zip(network.layers, partition.layers, strict=True)):
        found = np.full((layer.units, channel_count(network, l)), -1, np.int16)  # up to 16 M pairs
        for part, filters, read in own.blocks:
            found[np.ix_(_indices(filters), _indices(read))] = part
        cells.append(found)
    return Cells(cells, [owner_of(own.owners) for own in partition.layers])


def covers(network: LayerNetwork, partition: FinePartition) -> bool:
    """Whether every pair of every layer is in exactly one part, and every filter has an owner."""
    for l, (layer, own) in enumerate(zip(network.layers, partition.layers, strict=True)):
        count = np.zeros((layer.units, channel_count(network, l)), np.int16)
        for _, filters, read in own.blocks:
            count[np.ix_(_indices(filters), _indices(read))] += 1
        if (count != 1).any() or own.owners.cuts[-1] != layer.units:
            return False
    return True


def reads_one(network: LayerNetwork, l: int) -> FeatureMap | None:
    """The map whose units are the channels of a layer, if it can be cut between them."""
    layer, own = network.layers[l], maps_read(network)[l]
    if len(own) != 1 or len(layer.ops) != 1 or layer.channels % network.maps[own[0]].units:
        return None
    return network.maps[own[0]]


def ranges(chosen: Array) -> Ranges:
    """A mask as ranges.

    >>> ranges(np.array([True, True, False, True]))
    ((0, 2), (3, 4))
    """
    ends = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(np.int8), [0]])))
    return tuple((int(a), int(b)) for a, b in zip(ends[::2], ends[1::2], strict=True))


def length(own: Ranges) -> int:
    """How many indices there are."""
    return sum(b - a for a, b in own)


def owner_of(layout: ChannelLayout) -> Array:
    """The part of every filter."""
    return np.repeat(layout.parts, np.diff(layout.cuts))


def _owned(layout: ChannelLayout, parts: int) -> Array:
    found: Array = owner_of(layout)[None, :] == np.arange(parts)[:, None]
    return found


def _marked(partition: FinePartition, l: int, size: int, side: int) -> Array:
    """By part, the filters (side 0) or channels (side 1) of its pairs."""
    found = np.zeros((partition.parts, size), bool)
    for part, *sides in partition.layers[l].blocks:
        for a, b in sides[side]:
            found[part, a:b] = True
    return found


def _indices(own: Ranges) -> Array:
    return np.concatenate([np.arange(a, b) for a, b in own])
