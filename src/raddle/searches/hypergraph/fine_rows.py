"""Compresses a fine partition to counts: layers are cut into rows of filters, and rows into channels.

A *fine* partition may put the input channels of one filter into different parts; a *coarse* one keeps
filters whole. A *part* is a device's share.

    filters  +-------+-----+        In a row, each part has all filters of the row and `width` consecutive
       row 0 |   0   |  1  |        channels (its *window*). The row has as many filters as its parts own.
             +---+---+-----+        In a coarse partition every row has one part, which has all channels.
       row 1 | 2 | 3 |  4  |
             +---+---+-----+        (numbers: parts)
               channels

A part *owns* a filter (a unit) if it sums the filter's partial results and has its output. Filters are
interchangeable, so the search works on counts only (FineRows). The counts assume that the units that a part
owns are in the window that it reads in the next layer. `assign_indices` chooses concrete filters and
channels such that this holds as far as possible. A *map* is a feature map that layers read; it consists of
*pieces*: the units of one layer, then those of the next (network.py).
"""

# l, t, u: layers; p, q: parts; i: row; x: counts [layer, part]

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.explicit import channel_count
from raddle.searches.hypergraph.filter_layouts import elementwise_partners, layout_of_owners
from raddle.searches.hypergraph.fine_partition import (
    ComputeBlock,
    FineLayer,
    FinePartition,
    ranges,
    single_input_map,
)
from raddle.searches.hypergraph.network import FeatureMap, LayerNetwork

Array = np.ndarray
MAX_SWAPS = 2000  # of two windows, to find a good order


class FineRows(NamedTuple):
    """The rows of all layers, as arrays [layer, part]."""

    owned: Array  # number of filters that the part owns
    row: Array  # number of the part's row; -1: the part has nothing of the layer
    width: Array  # number of channels that the part reads

    def copy(self) -> FineRows:
        """Returns rows with arrays of their own."""
        return FineRows(*(array.copy() for array in self))


def rows_of_counts(network: LayerNetwork, x: Array) -> FineRows:
    """Returns the rows of a coarse partition: every part is a row of its own and reads all channels."""
    channel_counts = np.array([channel_count(network, l) for l in range(len(network.layers))])
    parts = np.arange(x.shape[1])
    x = np.ascontiguousarray(x, np.int64)
    row = np.where(x > 0, parts, -1)
    return FineRows(x.copy(), row, np.where(x > 0, channel_counts[:, None], 0))


Windows = tuple[Array, Array]  # by part: begin and end of the channels that it reads


def assign_indices(network: LayerNetwork, rows: FineRows, seed: int = 0) -> FinePartition:
    """Chooses the filters and channels of every part: first windows, then owners of units, such that a
    part's units are in its window of the layer that reads them; then the filters of each row."""
    rng = np.random.default_rng(seed)
    input_maps = {
        l: input_map
        for l in range(len(network.layers))
        if (input_map := single_input_map(network, l)) is not None
    }
    windows = {l: _windows(rows, l, np.arange(rows.owned.shape[1])) for l in input_maps}
    owners: dict[int, Array] = {}
    for l, layer in enumerate(network.layers):
        reader, offset = _main_reader(input_maps, rows, l)
        partner_owners = next(
            (owners[u] for u in elementwise_partners(network, l) if u in owners), None
        )
        # Owners taken from the layer with which units are read elementwise (an add); -1: none yet
        preset_owners = (
            np.full(layer.units, -1)
            if partner_owners is None
            else _keep_owners(partner_owners, rows.owned[l])
        )
        if reader in input_maps and len(input_maps[reader].pieces) == 1:
            if partner_owners is None:
                windows[reader] = _order_windows(rows, l, reader, windows[reader], rng)
            else:
                windows[reader] = _windows(
                    rows, reader, _parts_by_position(preset_owners, rows.owned.shape[1])
                )
        owners[l] = _fill_owners(preset_owners, rows.owned[l], windows.get(reader), offset)
    return FinePartition(
        rows.owned.shape[1],
        tuple(
            FineLayer(_blocks(rows, l, owners[l], windows.get(l)), layout_of_owners(owners[l]))
            for l in range(len(network.layers))
        ),
    )


def _blocks(
    rows: FineRows, l: int, owner: Array, windows: Windows | None
) -> tuple[ComputeBlock, ...]:
    """Returns what each part computes of layer l.

    owner: of every filter; windows: of layer l; None: every part reads all channels.
    """
    row_of = rows.row[l][owner]  # by filter
    blocks = []
    for p in np.flatnonzero(rows.row[l] >= 0):
        start = 0 if windows is None else int(windows[0][p])
        filters = ranges(row_of == rows.row[l, p])
        blocks.append(ComputeBlock(int(p), filters, ((start, start + int(rows.width[l, p])),)))
    return tuple(blocks)


def _windows(rows: FineRows, l: int, order: Array) -> Windows:
    """Places the windows of each row next to each other, in the given order of parts."""
    ends = np.zeros(rows.owned.shape[1], np.int64)
    for i in np.unique(rows.row[l][rows.row[l] >= 0]):
        members = order[rows.row[l][order] == i]
        ends[members] = np.cumsum(rows.width[l][members])
    return ends - rows.width[l], ends


def _main_reader(input_maps: Mapping[int, FeatureMap], rows: FineRows, l: int) -> tuple[int, int]:
    """Returns the layer that reads the most of layer l's units in windows, and where they begin in its
    channels; (-1, 0) if there is none."""
    best_gain, reader = 0, (-1, 0)
    for t, input_map in input_maps.items():
        offset = 0
        for piece in input_map.pieces:
            if piece.layer == l and (rows.width[t] < input_map.units).any():
                # Elements that are in their owners' windows at best, and are not sent
                gain = input_map.unit_elements * int(np.minimum(rows.owned[l], rows.width[t]).sum())
                if gain > best_gain:
                    best_gain, reader = gain, (t, offset)
            offset += piece.units
    return reader


def _order_windows(
    rows: FineRows, l: int, reader: int, windows: Windows, rng: np.random.Generator
) -> Windows:
    """Swaps windows of a row at random until the units of layer l can be in their owners' windows."""
    # Units that are in their owners' windows; at best this many:
    max_fits = int(np.minimum(rows.owned[l], rows.width[reader]).sum())
    order = np.arange(rows.owned.shape[1])
    fits = _units_in_windows(rows.owned[l], *windows)
    members = np.flatnonzero(rows.row[reader] >= 0)
    for _ in range(MAX_SWAPS):
        if fits == max_fits:
            break
        p = rng.choice(members)
        q = rng.choice(members[rows.row[reader][members] == rows.row[reader, p]])
        new_order = order.copy()
        new_order[order == p], new_order[order == q] = q, p
        new_windows = _windows(rows, reader, new_order)
        if (new_fits := _units_in_windows(rows.owned[l], *new_windows)) >= fits:
            order, windows, fits = new_order, new_windows, new_fits
    return windows


def _parts_by_position(owner: Array, parts: int) -> Array:
    """Returns the parts in the order of the mean position of the units that they own."""
    units_by_part = [np.flatnonzero(owner == p) for p in range(parts)]
    return np.argsort(
        [units.mean() if len(units) else len(owner) for units in units_by_part], kind="stable"
    )


def _units_in_windows(owned: Array, begin: Array, end: Array) -> int:
    """Returns how many units can be in the windows of their owners at most."""
    placed = np.full(int(owned.sum()), -1)
    assign_to_windows(placed, owned.copy(), begin, end)
    return int((placed >= 0).sum())


def _keep_owners(partner_owners: Array, counts: Array) -> Array:
    """Returns the partner layer's owner of each unit as far as counts allow, else -1."""
    owners = np.full(len(partner_owners), -1)
    for p in range(len(counts)):
        owners[np.flatnonzero(partner_owners == p)[: counts[p]]] = p
    return owners


def _fill_owners(owner: Array, counts: Array, windows: Windows | None, offset: int) -> Array:
    """Gives units without an owner to parts that miss some, in their windows if possible.

    offset: where the units begin in the channels of the windows.
    """
    owner, missing = owner.copy(), counts.copy()
    np.subtract.at(missing, owner[owner >= 0], 1)
    if windows is not None:
        begin, end = (np.clip(side - offset, 0, len(owner)) for side in windows)
        assign_to_windows(owner, missing, begin, end)
    owner[owner < 0] = np.repeat(np.arange(len(counts)), missing)
    return owner


@njit(cache=True)
def assign_to_windows(owner: Array, missing: Array, begin: Array, end: Array) -> None:
    """Gives as many units as possible to a part whose window they are in, the earliest end first.

    Changes owner (-1: none yet) and missing (units that each part still needs) in place.
    """
    for unit in range(len(owner)):
        if owner[unit] >= 0:
            continue
        chosen = -1
        for p in range(len(missing)):
            inside = missing[p] > 0 and begin[p] <= unit < end[p]
            if inside and (chosen < 0 or end[p] < end[chosen]):
                chosen = p
        if chosen >= 0:
            owner[unit] = chosen
            missing[chosen] -= 1


@njit(cache=True)
def apportion(total: int, shares: Array, minimum: int) -> Array:
    """Returns integers in proportion to shares, none below `minimum`, whose sum is `total`."""
    exact = minimum + (total - minimum * len(shares)) * shares / shares.sum()
    integers: Array = np.floor(exact).astype(np.int64)
    remaining = total - integers.sum()
    # One more for those that lost the most by rounding down
    if remaining > 0:
        integers[np.argsort(integers - exact)[:remaining]] += 1
    return integers
