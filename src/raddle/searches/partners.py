"""The devices that have parts of the same sums, under all configurations at once."""

# x: configuration, d, e: devices, a: axis

from __future__ import annotations

from itertools import combinations

import numpy as np

from raddle.searches.layouts import Layout
from raddle.searches.ranges import numbered

Array = np.ndarray


def partners(layout: Layout, node: Array) -> tuple[Array, Array, Array]:
    """[x, d]: which of its partners a device is, how many they are, and how many of them in its node."""
    if layout.placing is None:
        same, rank, count = _written(layout)
    else:
        same, rank, count = _by_axes(layout)
    near = np.ones_like(rank)
    for d in range(rank.shape[1]):
        own = (node == node[d]) & (np.arange(len(node)) != d)
        near[:, d] += ((same[:, own] == same[:, d, None]) & layout.present[:, own]).sum(axis=1)
    return rank, count, near


def _by_axes(layout: Layout) -> tuple[Array, Array, Array]:
    """Partners differ in the parts that they have of summed letters."""
    lattice = layout.lattice
    rank = np.zeros(layout.present.shape, np.int64)
    first = np.broadcast_to(lattice.devices, rank.shape)  # the partner that comes first
    count = np.ones((len(rank), 1), np.int64)
    for a in layout.summed:
        part = lattice.coordinates[a]
        first = first - part * lattice.strides[:, a, None]
        rank = rank * lattice.parts[:, a, None] + part
        count = count * lattice.parts[:, a, None]
    return first, rank, np.broadcast_to(count, rank.shape)


def _written(layout: Layout) -> tuple[Array, Array, Array]:
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
    return same, rank, count
