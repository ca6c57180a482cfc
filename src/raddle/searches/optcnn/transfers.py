"""Transfer times (t_X): seconds until every device has the part of a value that it needs.

    what the device itself holds of the value       needs no transfer
    what other devices of its node hold             comes over the node's link
    everything else                                 comes over the network

Devices receive at the same time. Bytes over a shared link (a bus, or a node's network card) add up. The
slowest link counts, with the latency of one message. Senders and the number of messages are not modelled.
"""

# i: configuration of the producer's group, j: of the reader's group, x: of either,
# d: sampled device, a: node with sampled devices, r: dimension of the value

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raddle.clusters import Cluster
from raddle.searches.optcnn.overlaps import fill_seconds, node_pieces
from raddle.searches.optcnn.ranges import Array, Ranges

# In clusters with more devices, times are computed for about this many devices only, which is faster.
SAMPLED_DEVICES = 64
FEW_READERS = 32  # with fewer configurations of the reader, sorting them does not pay


class Boxes(NamedTuple):
    """A box of a value for every device and configuration; empty if the device has none."""

    lo: Array  # [r, d, x]
    hi: Array  # [r, d, x]
    fixed: tuple[bool, ...]  # [r]: whether all boxes have the same range along dimension r


class HeldBoxes(NamedTuple):
    """The boxes of a value that devices hold, and the different boxes that nodes hold."""

    boxes: Boxes  # boxes of devices
    lo: Array  # [r, a, number of the box, x]: boxes of nodes
    hi: Array  # the same for their ends
    counts: Array  # [a, x]: number of boxes of the node


class ReceiveLinks(NamedTuple):
    """The links over which sampled devices receive; rates are in seconds per byte.

    shared: 1 if the devices of a node share the link, else 0.
    """

    start: Array  # [a]: position of the node's first device; at the end, the number of devices
    single_node: bool  # the cluster has only one node
    inside: Array  # [a, (rate, latency, shared)]: link inside of the node
    outside: Array  # [a, (rate, latency, shared)]: network


def sampled_devices(cluster: Cluster, *, all_devices: bool = False) -> Array:
    """Returns the indices of the devices whose times are computed: all, or about 64 devices of some nodes.

    The sample has the first and the last node, the nodes before and after each power of two, and others at
    equal distances. Most configurations use the first 1, 2, 4, ... devices, so that times change between
    the last node that is used and the next one.
    """
    count = cluster.nodes
    if not all_devices and len(cluster.devices) > SAMPLED_DEVICES:
        count = max(2, SAMPLED_DEVICES * cluster.nodes // len(cluster.devices))
    ends = [2**k - side for k in range(1, cluster.nodes.bit_length()) for side in (1, 0)]
    # ends: the nodes before and after each power of two; even: nodes at equal distances
    even = np.linspace(0, cluster.nodes - 1, count).round().astype(int).tolist()
    wanted = [0, cluster.nodes - 1, *(a for a in ends if a < cluster.nodes), *even]
    chosen = sorted(list(dict.fromkeys(wanted))[:count])
    return np.array([d for a in chosen for d in cluster.members(a)])


def receive_links(cluster: Cluster, devices: Array) -> ReceiveLinks:
    """Returns the links of the nodes of the sampled devices."""
    nodes, first = np.unique([cluster.devices[d].node for d in devices], return_index=True)
    inside, outside = np.zeros((len(nodes), 3)), np.zeros((len(nodes), 3))
    for a, node in enumerate(nodes):
        link, network = cluster.node_links[node], cluster.node_networks[node]
        if link is not None:
            inside[a] = _directions(link.duplex) / link.rate, link.latency, link.shared
        if network is not None:
            # If a node has several network cards, but not one for each device, they count as one card with
            # the rate (bytes/s) of all together.
            shared = not network.per_device  # per_device: a network card for each device
            rate = network.rate * (network.adapters if shared else 1)
            outside[a] = _directions(network.duplex) / rate, network.latency, shared
    start = np.append(first, len(devices)).astype(np.int64)
    return ReceiveLinks(start, cluster.nodes == 1, inside, outside)


def _directions(duplex: bool) -> int:
    """Returns the factor on a port's time: 2 if the port cannot send and receive at the same time.

    A port sends about as much as it receives.
    """
    return 1 if duplex else 2


def receive_seconds(links: ReceiveLinks, inside: Array, outside: Array) -> Array:
    """Returns [x]: seconds until all devices have received messages from inside and outside of their node.

    inside, outside: [x, d], the bytes that each device receives.
    """
    node = np.repeat(np.arange(len(links.start) - 1), np.diff(links.start))
    longest = np.zeros(len(inside))
    for nbytes, link_table in ((inside, links.inside), (outside, links.outside)):
        rate, latency, shared = link_table[node].T  # each [d]; rate: seconds per byte
        together = np.add.reduceat(nbytes, links.start[:-1], axis=1)[:, node]
        amount = np.where(shared > 0, together, nbytes)
        seconds = np.where(amount > 0, amount * rate + latency, 0.0)
        longest = np.maximum(longest, seconds.max(axis=1))
    return longest


# -- from configurations to boxes ----------------------------------------------------------------


def boxes(ranges: Sequence[Ranges], present: Array) -> Boxes:
    """Returns the boxes made of the ranges of a value's dimensions.

    present: [x, d], whether the device has a box.
    """
    lo, hi = np.zeros((2, max(1, len(ranges)), *present.T.shape))
    hi[0] = 1  # a value without dimensions has one element
    for r, dim_ranges in enumerate(ranges):
        lo[r], hi[r] = dim_ranges.bounds
    # Without a box, dimension 0 is empty; so it never counts as fixed.
    hi[0][~present.T] = lo[0][~present.T]
    return Boxes(lo, hi, (False, *(ranges_of_dim.index is None for ranges_of_dim in ranges[1:])))


def held_boxes(links: ReceiveLinks, device_boxes: Boxes) -> HeldBoxes:
    """Returns the boxes of devices, together with those of their nodes."""
    return HeldBoxes(device_boxes, *node_pieces(device_boxes.lo, device_boxes.hi, links.start))


def merged_slices(device_boxes: Boxes, rank: Array, count: Array) -> Boxes:
    """Returns the slices of boxes that devices hold after partial sums are merged.

    A box is cut into `count` [x, d] slices, and the device holds slice number `rank` [x, d]. The slices are
    along the longest side of the first device's box, as in configurations.py.
    """
    # [x]: the dimension of that side; [:, 0]: of the first device
    longest = (device_boxes.hi - device_boxes.lo)[:, 0].argmax(axis=0)
    along = np.broadcast_to(longest, device_boxes.lo.shape[1:])[None]
    lo = np.take_along_axis(device_boxes.lo, along, 0)
    size = np.take_along_axis(device_boxes.hi, along, 0) - lo
    new_lo, new_hi = device_boxes.lo.copy(), device_boxes.hi.copy()
    np.put_along_axis(new_lo, along, lo + np.ceil(size * rank.T / count.T), 0)
    np.put_along_axis(new_hi, along, lo + np.ceil(size * (rank.T + 1) / count.T), 0)
    return Boxes(new_lo, new_hi, (False,) * len(new_lo))


# -- from boxes to seconds -----------------------------------------------------------------------


def transfer_matrix(
    links: ReceiveLinks, held: HeldBoxes, need: Boxes, element_bytes: float
) -> Array:
    """Returns [i, j]: seconds until all devices have what they need, for all pairs of configurations.

    held: what the producer's devices hold. need: what the reader's devices need.
    """
    if need.lo.shape[2] < FEW_READERS:
        return _seconds(links, held, need, element_bytes, diagonal_only=False)
    # Configurations on many devices come first. So the loop of fill_seconds can stop, for each device,
    # after the last configuration in which the device needs anything.
    order = np.argsort(-(need.hi[0] > need.lo[0]).sum(axis=0), kind="stable")
    lo, hi = np.take(need.lo, order, axis=2), np.take(need.hi, order, axis=2)
    reordered = _seconds(links, held, Boxes(lo, hi, need.fixed), element_bytes, diagonal_only=False)
    out = np.empty_like(reordered)
    out[:, order] = reordered
    return out


def transfer_diagonal(
    links: ReceiveLinks, held: HeldBoxes, need: Boxes, element_bytes: float
) -> Array:
    """Returns [x]: transfer_matrix between two members of one group, which share their configuration."""
    return _seconds(links, held, need, element_bytes, diagonal_only=True).diagonal()


def _seconds(
    links: ReceiveLinks, held: HeldBoxes, need: Boxes, element_bytes: float, *, diagonal_only: bool
) -> Array:
    """Returns [i, j]: calls the JIT-compiled loop, without the dimensions that are never split.

    The sizes of those dimensions multiply the bytes of an element. diagonal_only: compute only the entries
    with i == j.
    """
    lo, hi, fixed = held.boxes
    keep, element_bytes = [], float(element_bytes)
    for r, both in enumerate(zip(fixed, need.fixed, strict=True)):
        if all(both):
            first, last = max(lo[r, 0, 0], need.lo[r, 0, 0]), min(hi[r, 0, 0], need.hi[r, 0, 0])
            element_bytes *= max(0.0, last - first)
        else:
            keep.append(r)
    sides = (need.lo, need.hi, lo, hi, held.lo, held.hi)
    sides_kept = sides if len(keep) == len(lo) else tuple(side[keep] for side in sides)
    out = np.zeros((lo.shape[2], need.lo.shape[2]), np.float32)
    fill_seconds(
        sides_kept[0], sides_kept[1], sides_kept[2], sides_kept[3], sides_kept[4], sides_kept[5],
        held.counts, links.start, links.single_node, links.inside, links.outside, element_bytes,
        diagonal_only, out,
    )  # fmt: skip
    return out
