"""Seconds to bring every device the part of a value that it needs and does not hold.

    holds      what the device itself has of the value: stays
    node       what the devices of its node have: comes over the node's link
    the rest   comes over the network

Devices receive at the same time. What shares a link (a bus, a node's NIC) adds up, and the longest counts.
Who sends is not looked at.
"""

# i: configuration of the producer, j: of the reader, x: of either, d: device, a: node, r: dimension,
# k: a piece of what a node holds, u: a different range

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.clusters import Cluster
from raddle.searches.ranges import Ranges

Array = np.ndarray
LOOKED_AT = 64  # devices


class Boxes(NamedTuple):
    """A box on every device under every configuration; empty where there is none."""

    lo: Array  # [r, d, x]
    hi: Array
    fixed: tuple[bool, ...]  # dimensions in which all boxes are the same


class Pieces(NamedTuple):
    """What each node holds: different boxes without common points, and how many of them."""

    lo: Array  # [r, a, k, x]
    hi: Array
    number: Array  # [a, x]


class Wires(NamedTuple):
    """What devices receive over; rates are seconds a byte."""

    start: Array  # by node, the first of its devices, and their number
    alone: bool  # a single node holds all there is
    inside: Array  # [a, (rate, latency, shared)]
    outside: Array


def looked_at(cluster: Cluster, *, every: bool = False) -> Array:
    """The devices of nodes that stand for all, about 64: first, last, and where powers of two end.

    Configurations end there, so what the next node receives differs from what the one before does.
    """
    count = cluster.nodes
    if not every and len(cluster.devices) > LOOKED_AT:
        count = max(2, LOOKED_AT * cluster.nodes // len(cluster.devices))
    ends = [2**k - side for k in range(1, cluster.nodes.bit_length()) for side in (1, 0)]
    even = np.linspace(0, cluster.nodes - 1, count).round().astype(int).tolist()
    wanted = [0, cluster.nodes - 1, *(a for a in ends if a < cluster.nodes), *even]
    chosen = sorted(list(dict.fromkeys(wanted))[:count])
    return np.array([d for a in chosen for d in cluster.members(a)])


def wires(cluster: Cluster, devices: Array) -> Wires:
    nodes, first = np.unique([cluster.devices[d].node for d in devices], return_index=True)
    inside, outside = np.zeros((len(nodes), 3)), np.zeros((len(nodes), 3))
    for a, node in enumerate(nodes):
        link, network = cluster.inside[node], cluster.between[node]
        if link is not None:
            inside[a] = _ways(link.duplex) / link.bandwidth, link.latency, link.shared
        if network is not None:
            shared = not network.per_device
            outside[a] = _ways(network.duplex) / network.bandwidth, network.latency, shared
    start = np.append(first, len(devices)).astype(np.int64)
    return Wires(start, cluster.nodes == 1, inside, outside)


def _ways(duplex: bool) -> float:
    """A port that serves one way at a time sends about as much as it receives."""
    return 1.0 if duplex else 2.0


def received(wires: Wires, inside: Array, outside: Array) -> Array:
    """[x]: seconds until all devices have received so many bytes [d, x] from their node and from others."""
    node = np.repeat(np.arange(len(wires.start) - 1), np.diff(wires.start))
    longest = np.zeros(inside.shape[1])
    for nbytes, figures in ((inside, wires.inside[node]), (outside, wires.outside[node])):
        together = np.add.reduceat(nbytes, wires.start[:-1], axis=0)[node]
        through = np.where(figures[:, 2:] > 0, together, nbytes)
        seconds = through * figures[:, :1] + figures[:, 1:2] * (through > 0)
        longest = np.maximum(longest, seconds.max(axis=0))
    return longest


def boxes(ranges: Sequence[Ranges], present: Array) -> Boxes:
    """`present` [x, d] says where there is a box."""
    shape = present.T.shape
    lo, hi = np.zeros((2, max(1, len(ranges)), *shape))
    hi[0] = 1  # a value without dimensions has one element
    for r, own in enumerate(ranges):
        lo[r], hi[r] = own.bounds
    hi[0][~present.T] = lo[0][~present.T]
    return Boxes(lo, hi, (False, *(own.at is None for own in ranges[1:])))


def sliced(own: Boxes, rank: Array, count: Array) -> Boxes:
    """The slices that a merge leaves on devices: number `rank` of `count` [x, d] along the longest side.

    It is the longest side of the first device's box, as for what follows in a group (configurations.py).
    """
    first = (own.hi - own.lo)[:, 0]
    along = np.broadcast_to(first.argmax(axis=0), own.lo.shape[1:])[None]
    lo = np.take_along_axis(own.lo, along, 0)
    size = np.take_along_axis(own.hi, along, 0) - lo
    new_lo, new_hi = own.lo.copy(), own.hi.copy()
    np.put_along_axis(new_lo, along, lo + np.ceil(size * rank.T / count.T), 0)
    np.put_along_axis(new_hi, along, lo + np.ceil(size * (rank.T + 1) / count.T), 0)
    return Boxes(new_lo, new_hi, (False,) * len(new_lo))


def matrix(wires: Wires, own: Boxes, pieces: Pieces, need: Boxes, width: float) -> Array:
    """[i, j]: seconds to bring what readers need, where `own` and `pieces` say who holds what."""
    keep, width = _split(own, need, float(width))
    # Readers that are on most devices come first: the others then are a rest that a device can skip.
    order = np.argsort(-(need.hi[0] > need.lo[0]).sum(axis=0), kind="stable")
    lo, hi = (np.take(side[keep], order, axis=2) for side in (need.lo, need.hi))
    found = np.zeros((own.lo.shape[2], len(order)), np.float32)
    _fill(
        lo, hi, own.lo[keep], own.hi[keep], pieces.lo[keep], pieces.hi[keep], pieces.number,
        wires.start, wires.alone, wires.inside, wires.outside, width, found,
    )  # fmt: skip
    out = np.empty_like(found)
    out[:, order] = found
    return out


def diagonal(wires: Wires, own: Boxes, pieces: Pieces, need: Boxes, width: float) -> Array:
    """[x]: the same between two members of one group."""
    sizes = np.maximum(need.hi - need.lo, 0).prod(axis=0)
    have = _overlap(own.lo, own.hi, need)
    near = sizes
    if not wires.alone:
        node = np.repeat(np.arange(len(wires.start) - 1), np.diff(wires.start))
        near = np.zeros_like(sizes)
        for k in range(pieces.lo.shape[2]):
            near += _overlap(pieces.lo[:, node, k], pieces.hi[:, node, k], need)
    return received(wires, (near - have) * width, (sizes - near) * width)


def _overlap(lo: Array, hi: Array, need: Boxes) -> Array:
    common = np.minimum(hi, need.hi) - np.maximum(lo, need.lo)
    return np.asarray(np.maximum(common, 0).prod(axis=0))


def _split(own: Boxes, need: Boxes, width: float) -> tuple[list[int], float]:
    """The dimensions in which anybody is split; the length of the others goes into the width."""
    keep = []
    for r, fixed in enumerate(zip(own.fixed, need.fixed, strict=True)):
        if all(fixed):
            lo, hi = max(own.lo[r, 0, 0], need.lo[r, 0, 0]), min(own.hi[r, 0, 0], need.hi[r, 0, 0])
            width *= max(0.0, hi - lo)
        else:
            keep.append(r)
    return keep, width


def node_pieces(wires: Wires, own: Boxes) -> Pieces:
    """What each node holds. Tiles that together are a box count as one.

    In row-major grids of powers of two those of a node always do.
    """
    return Pieces(*_pieces(own.lo, own.hi, wires.start))


@njit(cache=True)
def _pieces(lo: Array, hi: Array, start: Array) -> tuple[Array, Array, Array]:
    ranks, _, many = lo.shape
    nodes, most = len(start) - 1, np.diff(start).max()
    low, high = np.zeros((2, ranks, nodes, most, many))
    count = np.zeros((nodes, many), np.int64)
    total = np.empty(many)
    for a in range(nodes):
        total[:] = 0.0
        for d in range(start[a], start[a + 1]):
            for x in range(many):
                size = 1.0
                for r in range(ranks):
                    size *= hi[r, d, x] - lo[r, d, x]
                if size <= 0 or _is_among(lo, hi, d, low, high, a, count[a, x], x):
                    continue
                for r in range(ranks):
                    low[r, a, count[a, x], x], high[r, a, count[a, x], x] = lo[r, d, x], hi[r, d, x]
                count[a, x] += 1
                total[x] += size
        for x in range(many):
            if count[a, x] > 1 and _hull(low, high, a, count[a, x], x) == total[x]:
                for r in range(ranks):
                    low[r, a, 0, x] = low[r, a, : count[a, x], x].min()
                    high[r, a, 0, x] = high[r, a, : count[a, x], x].max()
                    low[r, a, 1:, x] = 0
                    high[r, a, 1:, x] = 0
                count[a, x] = 1
    return low, high, count


@njit(cache=True)
def _is_among(
    lo: Array, hi: Array, d: int, low: Array, high: Array, a: int, count: int, x: int
) -> bool:
    for k in range(count):
        same = True
        for r in range(len(lo)):
            same &= low[r, a, k, x] == lo[r, d, x] and high[r, a, k, x] == hi[r, d, x]
        if same:
            return True
    return False


@njit(cache=True)
def _hull(low: Array, high: Array, a: int, count: int, x: int) -> float:
    """The volume of the smallest box around all pieces."""
    volume = 1.0
    for r in range(len(low)):
        volume *= high[r, a, :count, x].max() - low[r, a, :count, x].min()
    return volume


@njit(cache=True)
def _fill(
    need_lo: Array, need_hi: Array, own_lo: Array, own_hi: Array,
    piece_lo: Array, piece_hi: Array, pieces: Array,
    start: Array, alone: bool, link: Array, network: Array, width: float, out: Array,
) -> None:  # fmt: skip
    """Device by device: overlaps with few different ranges a dimension, multiplied row by row of j."""
    ranks, _, readers = need_lo.shape
    makers, most = own_lo.shape[2], piece_lo.shape[2]
    rows = np.empty(
        (ranks, makers * (1 + most), readers)
    )  # overlaps of different ranges with needs
    ends = np.empty((ranks, makers * (1 + most), 2))
    own_at = np.zeros((makers, ranks), np.int64)
    piece_at = np.zeros((makers, most, ranks), np.int64)
    inside, outside = np.zeros((2, makers, readers))  # elements, since the link was last closed
    sizes, buffer = np.empty(readers), np.empty((3, readers))
    for a in range(len(start) - 1):
        widest = 0
        for d in range(start[a], start[a + 1]):
            _volumes(need_lo[:, d], need_hi[:, d], sizes)
            n = readers
            while n > 0 and sizes[n - 1] <= 0:
                n -= 1
            widest = max(widest, n)
            needs, here, near, part = sizes[:n], buffer[0, :n], buffer[1, :n], buffer[2, :n]
            for r in range(ranks):
                used = 0
                lo, hi = need_lo[r, d, :n], need_hi[r, d, :n]
                for i in range(makers):
                    own_at[i, r], used = _row(
                        own_lo[r, d, i], own_hi[r, d, i], lo, hi, rows[r], ends[r], used
                    )
                    for k in range(pieces[a, i]):
                        piece_at[i, k, r], used = _row(
                            piece_lo[r, a, k, i], piece_hi[r, a, k, i], lo, hi, rows[r], ends[r],
                            used,
                        )  # fmt: skip
            last = d == start[a + 1] - 1
            for i in range(makers):
                here[:] = 0.0
                if own_lo[0, d, i] < own_hi[0, d, i]:
                    _multiply(rows, own_at[i], here)
                if alone:
                    near[:] = needs
                elif pieces[a, i] == 1:
                    _multiply(rows, piece_at[i, 0], near)
                else:
                    near[:] = 0.0
                    for k in range(pieces[a, i]):
                        _multiply(rows, piece_at[i, k], part)
                        near += part
                from_node, from_others = inside[i], outside[i]
                for j in range(n):
                    from_node[j] += near[j] - here[j]
                    from_others[j] += needs[j] - near[j]
                if last or link[a, 2] == 0:
                    _close(from_node[:widest], link[a, 0] * width, link[a, 1], out[i])
                if not alone and (last or network[a, 2] == 0):
                    _close(from_others[:widest], network[a, 0] * width, network[a, 1], out[i])


# Comparisons instead of max and min: those of Python keep the compiler from using vectors.


@njit(cache=True)
def _volumes(lo: Array, hi: Array, out: Array) -> None:
    out[:] = 1.0
    for r in range(len(lo)):
        for j in range(len(out)):
            out[j] *= hi[r, j] - lo[r, j] if hi[r, j] > lo[r, j] else 0.0


@njit(cache=True)
def _row(
    a: float, b: float, lo: Array, hi: Array, rows: Array, ends: Array, used: int
) -> tuple[int, int]:
    """The number of the row for the range a to b: one that is there, or a new one."""
    for u in range(used):
        if ends[u, 0] == a and ends[u, 1] == b:
            return u, used
    ends[used, 0], ends[used, 1] = a, b
    row = rows[used]
    for j in range(len(lo)):
        low = lo[j] if lo[j] > a else a
        high = hi[j] if hi[j] < b else b
        row[j] = high - low if high > low else 0.0
    return used, used + 1


@njit(cache=True)
def _multiply(rows: Array, at: Array, out: Array) -> None:
    if len(at) == 1:
        out[:] = rows[0, at[0], : len(out)]
        return
    first, second = rows[0, at[0]], rows[1, at[1]]
    for j in range(len(out)):
        out[j] = first[j] * second[j]
    for r in range(2, len(at)):
        row = rows[r, at[r]]
        for j in range(len(out)):
            out[j] *= row[j]


@njit(cache=True)
def _close(amount: Array, rate: float, latency: float, longest: Array) -> None:
    for j in range(len(amount)):
        seconds = np.float32(amount[j] * rate + (latency if amount[j] > 0 else 0.0))
        longest[j] = seconds if seconds > longest[j] else longest[j]
        amount[j] = 0.0
