"""Makes a plan of counts: assigns units of layers to parts, and tiles every operator accordingly.

A *unit* is a filter of a layer, a *part* a device's share. The *counts* x[l, p] of a coarse partition
(which keeps filters whole) say how many units of layer l part p has (counts.py). The *owner* of a unit is
the part that has its output. The channels of a value are *pieces*: the units of one layer, then those
of the next (network.py). A *layout* lists ranges of units or channels and their parts.

Units that are read elementwise (the two operands of an add) are placed in the same part as far as the
counts allow. The later layer gives each unit the owner that it has in the earlier layer, until a part has
its count; the remaining units fill the parts that miss some. So a part may have several ranges of a layer's
filters, and no filter is renumbered.
"""

# l, t: layers; p: part; v: feature map, a value that layers read

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Tiling
from raddle.searches.baselines.filters import ChannelLayout, join_ranges
from raddle.searches.grids import (
    BatchIndependentOps,
    Tiles,
    copies,
    dim_of,
    place_batch_independent,
    split,
)
from raddle.searches.hypergraph.network import LayerNetwork, Pieces

Array = np.ndarray


def layouts_of_counts(network: LayerNetwork, x: Array) -> list[ChannelLayout]:
    """Returns, for each layer, the ranges of its units and their parts; part p has x[l, p] units."""
    owners: dict[int, Array] = {}
    for l, layer in enumerate(network.layers):
        partner_owners = next(
            (owners[t] for t in elementwise_partners(network, l) if t in owners), None
        )
        in_order = np.repeat(np.arange(x.shape[1]), x[l])
        owners[l] = in_order if partner_owners is None else keep_owners(partner_owners, x[l])
        assert len(owners[l]) == layer.units
    return [layout_of_owners(owners[l]) for l in range(len(network.layers))]


def elementwise_partners(network: LayerNetwork, l: int) -> list[int]:
    """Returns layers whose units are read elementwise with those of layer l; most elements first."""
    shared_elements: dict[int, int] = {}
    for v in network.maps:
        for reader in v.elementwise_readers:
            for piece, reader_piece in zip(v.pieces, reader, strict=True):
                if piece.units == reader_piece.units and l in (piece.layer, reader_piece.layer):
                    partner = reader_piece.layer if piece.layer == l else piece.layer
                    shared_elements[partner] = shared_elements.get(partner, 0) + v.unit_elements
    return sorted(shared_elements, key=lambda t: (-shared_elements[t], t))


def keep_owners(partner_owners: Array, counts: Array) -> Array:
    """Returns the part of each unit: the partner layer's owner as far as counts allow.

    The other units go to the parts that miss some, in order. counts: units of each part.
    """
    owners, missing = np.full(len(partner_owners), -1), counts.copy()
    for p in range(len(counts)):
        units = np.flatnonzero(partner_owners == p)[: counts[p]]
        owners[units] = p
        missing[p] -= len(units)
    owners[owners < 0] = np.repeat(np.arange(len(counts)), missing)
    return owners


def layout_of_owners(owners: Array) -> ChannelLayout:
    """Returns the ranges of equal owners; owners: the part of every unit."""
    cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    return ChannelLayout(tuple(cuts), tuple(int(owners[a]) for a in cuts[:-1]))


def place_operators(
    graph: Graph,
    network: LayerNetwork,
    layouts: Sequence[ChannelLayout],
    given_tiles: Mapping[str, Tiling] | None = None,
) -> Tiles:
    """Returns the tiles of all operators.

    layouts: of the units, by layer. given_tiles: of operators with pieces; they are kept as they are. Any
    other operator with pieces is split by channel, as the units of its pieces are. A view without pieces is
    computed where it is read. Any other operator without pieces runs on the last part of the operator
    before.
    """
    tiles: Tiles = dict(given_tiles or {})
    # names: operators that read no samples, placed at the end where their results are read (on device 0, if
    # nothing reads them); readers: of every value of the graph
    independent = BatchIndependentOps(graph)
    views: list[Op] = []
    last_part = layouts[0].parts[0]
    for op in graph.ops:
        if op.name in independent.names:
            continue
        pieces = network.op_pieces.get(op.name)
        if pieces is not None:
            tiles.setdefault(op.name, channel_tiles(op, pieces, layouts))
            last_part = layouts[pieces[-1].layer].parts[-1]
        elif op.traits.is_view and any(independent.readers.get(o) for o in op.outputs):
            views.append(op)
        else:
            tiles[op.name] = copies(op, [last_part])
    # place: puts operators on the devices that read their results
    tiles.update(independent.place(reversed(views), tiles))
    place_batch_independent(graph, tiles, lambda op: copies(op, [0]))
    return tiles


def _layout_of_pieces(
    pieces: Pieces, layouts: Sequence[ChannelLayout], channels: int
) -> ChannelLayout:
    """Returns the layouts of the pieces one after the other, scaled to the number of channels."""
    scale = channels // sum(piece.units for piece in pieces)
    cuts, owners = [0], list[int]()
    for piece in pieces:
        start = cuts[-1]
        cuts += [start + scale * cut for cut in layouts[piece.layer].cuts[1:]]
        owners += layouts[piece.layer].parts
    return join_ranges(cuts, owners)


def channel_tiles(op: Op, pieces: Pieces, layouts: Sequence[ChannelLayout]) -> Tiling:
    """Returns an operator's tiles: split by channel, each channel in the part that owns its unit."""
    c = dim_of(op, "c")
    assert c is not None
    layout = _layout_of_pieces(pieces, layouts, op.space.dims[c].size)
    return split(op, {c: layout.cuts}, layout.parts)
