"""Seconds to bring every device the part of a value that it needs and does not hold.

    holds      what the device itself has of the value: stays
    node       what the devices of its node have: comes over the node's link
    the rest   comes over the network

Devices receive at the same time; what shares a link (a bus, a node's NIC) adds up, and the longest counts,
with the latency of one message. How many messages there are, and who sends them, is not looked at.
"""

# i: configuration of the producer, j: of the reader, x: of either, d: device, a: node, r: dimension

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raddle.clusters import Cluster
from raddle.searches.optcnn.overlaps import fill_seconds, node_pieces
from raddle.searches.optcnn.ranges import Array, Ranges

SAMPLED_DEVICES = 64  # devices
FEW_READERS = 32  # readers whose order does not matter


class Boxes(NamedTuple):
    """A box on every device under every configuration; empty where there is none."""

    lo: Array  # [r, d, x]
    hi: Array
    fixed: tuple[bool, ...]  # dimensions in which all boxes are the same


class HeldBoxes(NamedTuple):
    """What devices hold of a value, and the different boxes that their nodes hold."""

    boxes: Boxes
    lo: Array  # [r, a, number of the box, x]
    hi: Array
    counts: Array  # [a, x]: how many


class ReceiveLinks(NamedTuple):
    """What devices receive over; rates are seconds a byte."""

    start: Array  # by node, the first of its devices, and their number
    single_node: bool  # a single node holds all there is
    inside: Array  # [a, (rate, latency, shared)]
    outside: Array


def sampled_devices(cluster: Cluster, *, all_devices: bool = False) -> Array:
    """The devices of nodes that stand for all, about 64: first, last, and where powers of two end.

    Configurations end there, so what the next node receives differs from what the one before does.
    """
    count = cluster.nodes
    if not all_devices and len(cluster.devices) > SAMPLED_DEVICES:
        count = max(2, SAMPLED_DEVICES * cluster.nodes // len(cluster.devices))
    ends = [2**k - side for k in range(1, cluster.nodes.bit_length()) for side in (1, 0)]
    even = np.linspace(0, cluster.nodes - 1, count).round().astype(int).tolist()
    wanted = [0, cluster.nodes - 1, *(a for a in ends if a < cluster.nodes), *even]
    chosen = sorted(list(dict.fromkeys(wanted))[:count])
    return np.array([d for a in chosen for d in cluster.members(a)])


def receive_links(cluster: Cluster, devices: Array) -> ReceiveLinks:
    nodes, first = np.unique([cluster.devices[d].node for d in devices], return_index=True)
    inside, outside = np.zeros((len(nodes), 3)), np.zeros((len(nodes), 3))
    for a, node in enumerate(nodes):
        link, network = cluster.node_links[node], cluster.node_networks[node]
        if link is not None:
            inside[a] = _directions(link.duplex) / link.bandwidth, link.latency, link.shared
        if network is not None:
            shared = not network.per_device
            outside[a] = _directions(network.duplex) / network.bandwidth, network.latency, shared
    start = np.append(first, len(devices)).astype(np.int64)
    return ReceiveLinks(start, cluster.nodes == 1, inside, outside)


def _directions(duplex: bool) -> int:
    """A port that serves one way at a time sends about as much as it receives."""
    return 1 if duplex else 2


class Received(NamedTuple):
    """Messages that a device receives and their bytes, [x, d]."""

    messages: Array
    nbytes: Array


def receive_seconds(links: ReceiveLinks, inside: Received, outside: Received) -> Array:
    """[x]: seconds until all devices have received what comes from their node, and from others."""
    node = np.repeat(np.arange(len(links.start) - 1), np.diff(links.start))
    longest = np.zeros(len(inside.nbytes))
    for amount, link_table in ((inside, links.inside), (outside, links.outside)):
        rate, latency, shared = link_table[node].T
        seconds = amount.nbytes * rate + amount.messages * latency
        together = np.add.reduceat(seconds, links.start[:-1], axis=1)[:, node]
        longest = np.maximum(longest, np.where(shared > 0, together, seconds).max(axis=1))
    return longest


# -- from configurations to boxes ----------------------------------------------------------------


def boxes(ranges: Sequence[Ranges], present: Array) -> Boxes:
    """`present` [x, d] says where there is a box."""
    lo, hi = np.zeros((2, max(1, len(ranges)), *present.T.shape))
    hi[0] = 1  # a value without dimensions has one element
    for r, dim_ranges in enumerate(ranges):
        lo[r], hi[r] = dim_ranges.bounds
    hi[0][~present.T] = lo[0][~present.T]
    return Boxes(lo, hi, (False, *(ranges_of_dim.index is None for ranges_of_dim in ranges[1:])))


def held_boxes(links: ReceiveLinks, device_boxes: Boxes) -> HeldBoxes:
    return HeldBoxes(device_boxes, *node_pieces(device_boxes.lo, device_boxes.hi, links.start))


def merged_slices(device_boxes: Boxes, rank: Array, count: Array) -> Boxes:
    """The slices that a merge leaves on devices: number `rank` of `count` [x, d] along the longest side.

    It is the longest side of the first device's box, as for what follows in a group (configurations.py).
    """
    longest = (device_boxes.hi - device_boxes.lo)[:, 0].argmax(axis=0)  # [x]
    along = np.broadcast_to(longest, device_boxes.lo.shape[1:])[None]
    lo = np.take_along_axis(device_boxes.lo, along, 0)
    size = np.take_along_axis(device_boxes.hi, along, 0) - lo
    new_lo, new_hi = device_boxes.lo.copy(), device_boxes.hi.copy()
    np.put_along_axis(new_lo, along, lo + np.ceil(size * rank.T / count.T), 0)
    np.put_along_axis(new_hi, along, lo + np.ceil(size * (rank.T + 1) / count.T), 0)
    return Boxes(new_lo, new_hi, (False,) * len(new_lo))


# -- from boxes to seconds -----------------------------------------------------------------------


def transfer_matrix(links: ReceiveLinks, held: HeldBoxes, need: Boxes, width: float) -> Array:
    """[i, j]: seconds to bring readers what they need of what makers hold."""
    if need.lo.shape[2] < FEW_READERS:
        return _seconds(links, held, need, width, pairs=False)
    # Readers that are on most devices come first: the others then are a rest that a device can skip.
    order = np.argsort(-(need.hi[0] > need.lo[0]).sum(axis=0), kind="stable")
    lo, hi = np.take(need.lo, order, axis=2), np.take(need.hi, order, axis=2)
    reordered = _seconds(links, held, Boxes(lo, hi, need.fixed), width, pairs=False)
    out = np.empty_like(reordered)
    out[:, order] = reordered
    return out


def transfer_diagonal(links: ReceiveLinks, held: HeldBoxes, need: Boxes, width: float) -> Array:
    """[x]: the same between two members of one group."""
    return _seconds(links, held, need, width, pairs=True).diagonal()


def _seconds(
    links: ReceiveLinks, held: HeldBoxes, need: Boxes, width: float, *, pairs: bool
) -> Array:
    """Without the dimensions in which nobody is split: their length goes into the width."""
    lo, hi, fixed = held.boxes
    keep, width = [], float(width)
    for r, both in enumerate(zip(fixed, need.fixed, strict=True)):
        if all(both):
            first, last = max(lo[r, 0, 0], need.lo[r, 0, 0]), min(hi[r, 0, 0], need.hi[r, 0, 0])
            width *= max(0.0, last - first)
        else:
            keep.append(r)
    sides = (need.lo, need.hi, lo, hi, held.lo, held.hi)
    sides_kept = sides if len(keep) == len(lo) else tuple(side[keep] for side in sides)
    out = np.zeros((lo.shape[2], need.lo.shape[2]), np.float32)
    fill_seconds(
        sides_kept[0], sides_kept[1], sides_kept[2], sides_kept[3], sides_kept[4], sides_kept[5], held.counts,
        links.start, links.single_node, links.inside, links.outside, width, pairs, out,
    )  # fmt: skip
    return out
