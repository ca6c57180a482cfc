"""Finds the devices that must merge partial sums with each other, in all configurations at once.

If a summed dimension is split, several devices have partial sums of the same result: they are partners.

Member: an operator of a group. A group's operators are split together, along letters (dimensions).
Layout (layouts.py): for one member, the tile that each device has in each configuration of the group.
Lattice (ranges.py): all configurations of the group. In each, the devices form a grid with one axis for
each letter; a device has a coordinate along each axis, as in a device mesh.
Placement (layouts.py): the properties of a member from which, with a device's coordinates, it follows
whether the device has a tile. It is None if several letters may cut one dimension; then the tiles of each
configuration were computed separately.
Sampled devices (transfers.py): all devices or, to save time, about 64 of them, if the cluster has more and
summed letters may not be split.
"""

# x: configuration of a group, d, e: sampled devices, a: axis (position of a letter)

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from raddle.searches.optcnn.layouts import MemberLayout
from raddle.searches.optcnn.ranges import Array, combination_ids


class Partners(NamedTuple):
    """The partners of each device, as arrays [x, d].

    If partial sums have copies, the first copies are partners of each other, and so are the second ones.
    """

    rank: Array  # position of the device among its partners
    partner_count: Array  # number of partners, the device included
    in_node: Array  # number of partners in the device's node
    is_first_copy: Array  # whether the device has the first copy of its partial sum
    partials: Array  # number of different partial sums of all results
    partials_in_node: Array  # number of partial sums with their first copy in the device's node


def find_partners(layout: MemberLayout, node: Array) -> Partners:
    """Returns the partners, given the layout of a member. node: [d], number of the device's node."""
    # sum_id: [x, d], the same number for partners. layout.present: [x, d], whether the device has a tile.
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
    """Finds partners by coordinates: partners differ in axes that split summed dimensions.

    Copies differ in axes that split no dimension. Returns arrays [x, d]: sum_id, the same number for
    partners; and rank, partner_count, is_first_copy and partials, as in Partners.
    """
    # lattice.parts: [x, a], number of parts of a letter. lattice.strides: [x, a], the difference of the
    # numbers of two devices that have neighbouring parts of the letter.
    lattice = layout.lattice
    rank = np.zeros(layout.present.shape, np.int64)
    first = np.broadcast_to(lattice.devices, rank.shape)  # the first of the partners, as sum_id
    count = np.ones((len(rank), 1), np.int64)
    for a in layout.summed:  # axes that split summed dimensions
        coordinate = lattice.coordinates[a]
        first = first - coordinate * lattice.strides[:, a, None]
        rank = rank * lattice.parts[:, a, None] + coordinate
        count = count * lattice.parts[:, a, None]
    is_first_copy, partials = layout.present, np.ones((len(rank), 1), np.int64)
    cut = {a for r in layout.dims for a in r.axes}  # axes that split some dimension
    for a, coordinate in enumerate(lattice.coordinates):
        if a in cut:
            partials = partials * lattice.parts[:, a, None]
        else:
            is_first_copy = is_first_copy & (coordinate == 0)
    return first, rank, np.broadcast_to(count, rank.shape), is_first_copy, partials


def _from_tiles(layout: MemberLayout) -> tuple[Array, ...]:
    """Finds partners by comparing the tiles of every two sampled devices, for layouts without a placement.

    Partners have a partial sum of the same box of the output, and the same copy number (0: first copy).
    Returns the same arrays as _from_axes.
    """
    present = layout.present
    output_dims = sorted({d for output in layout.space.outputs for d in output})
    # output_id, tile_id: [x, d], the same number for devices with the same box of the output, or same tile
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
