"""The devices that have parts of the same sums, under all configurations at once."""

# x: configuration, d, e: devices, a: axis

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from raddle.searches.optcnn.layouts import MemberLayout
from raddle.searches.optcnn.ranges import Array, combination_ids


class Partners(NamedTuple):
    """[x, d]: a device's partners have other parts of its sums; copies of a part count once."""

    rank: Array  # which of its partners a device is
    partner_count: Array  # how many they are, itself included
    in_node: Array  # how many of them in its node
    is_first_copy: Array  # whether its part counts, and is not the copy of another's
    partials: Array  # how many parts of any sums there are
    partials_in_node: Array  # how many of them in its node


def find_partners(layout: MemberLayout, node: Array) -> Partners:
    """`node` is that of each device that is looked at."""
    sum_id, rank, count, is_first_copy, partials = (
        _from_tiles if layout.placement is None else _from_axes
    )(layout)
    in_node, partials_in_node = np.ones_like(rank), np.zeros_like(rank)
    for d in range(rank.shape[1]):
        same_node = node == node[d]
        partials_in_node[:, d] = is_first_copy[:, same_node].sum(axis=1)
        same_node[d] = False
        in_node[:, d] += (
            (sum_id[:, same_node] == sum_id[:, d, None]) & layout.present[:, same_node]
        ).sum(axis=1)
    return Partners(rank, count, in_node, is_first_copy, partials, partials_in_node)


def _from_axes(layout: MemberLayout) -> tuple[Array, ...]:
    """Partners differ in the parts that they have of summed letters, copies in those of no dimension."""
    lattice = layout.lattice
    rank = np.zeros(layout.present.shape, np.int64)
    first = np.broadcast_to(lattice.devices, rank.shape)  # the partner that comes first
    count = np.ones((len(rank), 1), np.int64)
    for a in layout.summed:
        coordinate = lattice.coordinates[a]
        first = first - coordinate * lattice.strides[:, a, None]
        rank = rank * lattice.parts[:, a, None] + coordinate
        count = count * lattice.parts[:, a, None]
    is_first_copy, partials = layout.present, np.ones((len(rank), 1), np.int64)
    cut = {a for r in layout.dims for a in r.axes}
    for a, coordinate in enumerate(lattice.coordinates):
        if a in cut:
            partials = partials * lattice.parts[:, a, None]
        else:
            is_first_copy = is_first_copy & (coordinate == 0)
    return first, rank, np.broadcast_to(count, rank.shape), is_first_copy, partials


def _from_tiles(layout: MemberLayout) -> tuple[Array, ...]:
    """Partners have the same output and, of copies of tiles, the same one; all devices are looked at."""
    present = layout.present
    output_dims = sorted({d for output in layout.space.outputs for d in output})
    output_id = combination_ids([layout.dims[d] for d in output_dims], present.shape)
    tile_id = combination_ids(layout.dims, present.shape)
    copy_number = np.zeros(present.shape, np.int64)
    pairs = list(combinations(range(present.shape[1]), 2))
    for d, e in pairs:
        copy_number[:, e] += present[:, d] & (tile_id[:, d] == tile_id[:, e])
    sum_id = output_id * (copy_number.max() + 1) + copy_number
    rank, count = np.zeros(present.shape, np.int64), np.ones(present.shape, np.int64)
    for d, e in pairs:
        both = present[:, d] & present[:, e] & (sum_id[:, d] == sum_id[:, e])
        rank[:, e] += both
        count[:, d] += both
        count[:, e] += both
    is_first_copy = present & (copy_number == 0)
    return sum_id, rank, count, is_first_copy, is_first_copy.sum(axis=1, keepdims=True)
