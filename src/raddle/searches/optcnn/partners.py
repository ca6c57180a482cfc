"""The devices that have parts of the same sums, under all configurations at once."""

# x: configuration, d, e: devices, a: axis

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from raddle.searches.optcnn.layouts import Layout
from raddle.searches.optcnn.ranges import Array, numbered


class Partners(NamedTuple):
    """[x, d]: a device's partners have other parts of its sums; copies of a part count once."""

    rank: Array  # which of its partners a device is
    number: Array  # how many they are, itself included
    near: Array  # how many of them in its node
    counts: Array  # whether its part counts, and is not the copy of another's
    parts: Array  # how many parts of any sums there are
    parts_near: Array  # how many of them in its node


def partners(layout: Layout, node: Array) -> Partners:
    """`node` is that of each device that is looked at."""
    same, rank, count, counts, parts = (_written if layout.placing is None else _by_axes)(layout)
    near, parts_near = np.ones_like(rank), np.zeros_like(rank)
    for d in range(rank.shape[1]):
        own = node == node[d]
        parts_near[:, d] = counts[:, own].sum(axis=1)
        own[d] = False
        near[:, d] += ((same[:, own] == same[:, d, None]) & layout.present[:, own]).sum(axis=1)
    return Partners(rank, count, near, counts, parts, parts_near)


def _by_axes(layout: Layout) -> tuple[Array, ...]:
    """Partners differ in the parts that they have of summed letters, copies in those of no dimension."""
    lattice = layout.lattice
    rank = np.zeros(layout.present.shape, np.int64)
    first = np.broadcast_to(lattice.devices, rank.shape)  # the partner that comes first
    count = np.ones((len(rank), 1), np.int64)
    for a in layout.summed:
        part = lattice.coordinates[a]
        first = first - part * lattice.strides[:, a, None]
        rank = rank * lattice.parts[:, a, None] + part
        count = count * lattice.parts[:, a, None]
    counts, parts = layout.present, np.ones((len(rank), 1), np.int64)
    cut = {a for r in layout.dims for a in r.axes}
    for a, part in enumerate(lattice.coordinates):
        if a in cut:
            parts = parts * lattice.parts[:, a, None]
        else:
            counts = counts & (part == 0)
    return first, rank, np.broadcast_to(count, rank.shape), counts, parts


def _written(layout: Layout) -> tuple[Array, ...]:
    """Partners have the same output and, of copies of tiles, the same one; all devices are looked at."""
    here = layout.present
    shown = sorted({d for output in layout.space.outputs for d in output})
    out = numbered([layout.dims[d] for d in shown], here.shape)
    tile = numbered(layout.dims, here.shape)
    copy = np.zeros(here.shape, np.int64)
    pairs = list(combinations(range(here.shape[1]), 2))
    for d, e in pairs:
        copy[:, e] += here[:, d] & (tile[:, d] == tile[:, e])
    same = out * (copy.max() + 1) + copy
    rank, count = np.zeros(here.shape, np.int64), np.ones(here.shape, np.int64)
    for d, e in pairs:
        both = here[:, d] & here[:, e] & (same[:, d] == same[:, e])
        rank[:, e] += both
        count[:, d] += both
        count[:, e] += both
    counts = here & (copy == 0)
    return same, rank, count, counts, counts.sum(axis=1, keepdims=True)
