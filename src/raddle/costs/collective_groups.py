"""Describes the members of a collective for the cost formulas: their nodes, rings, and loads of links.

The *load* of a link is the number of seconds for which the messages of the collective occupy it. An adapter
is a network adapter (NIC) of a node; a rail joins adapters of the same number on all nodes.
"""

# d, e: devices, as indices into cluster.devices; local: the members on one node

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, permutations, product
from typing import NamedTuple

from raddle.clusters import Cluster

Hop = tuple[int, int]  # source and target


class Ring(NamedTuple):
    """A ring of devices, or several such rings at once that share the bytes between them."""

    size: int  # devices
    bandwidth: float  # bytes/s of the slowest hop
    latency: float  # seconds of all hops together
    longest: float  # seconds of the hop with the highest latency


def hops(ring: Sequence[int]) -> list[Hop]:
    """Returns the hops (source, target) of a ring; the last one leads back to the first device."""
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def by_node(cluster: Cluster, devices: Iterable[int]) -> list[list[int]]:
    """Returns the devices of each node, in ascending order: as in libraries, the order given is ignored."""
    nodes: dict[int, list[int]] = {}
    for d in sorted(devices):
        nodes.setdefault(cluster.devices[d].node, []).append(d)
    return list(nodes.values())


def whole_ring(cluster: Cluster, nodes: Sequence[Sequence[int]]) -> Ring:
    """Returns the ring of all members, node by node; between nodes, one ring for each adapter at once.

    Each of several rings begins at another device of a node, so that they share its ports evenly.
    """
    if len(nodes) == 1:
        return device_ring(cluster, nodes[0])
    size, bandwidth, latency, longest = all_rails_ring(cluster, nodes)
    for local in nodes:
        # Inside a node the ring is open: it leaves the node from the last device.
        inner_hops = list(pairwise(local))
        bandwidth = min(bandwidth, _slowest_hop(cluster, inner_hops))
        seconds = [cluster.route(d, e).latency for d, e in inner_hops]
        size, latency = size + len(inner_hops), latency + sum(seconds)
        longest = max([longest, *seconds])
    return Ring(size, bandwidth, latency, longest)


def device_ring(cluster: Cluster, devices: Sequence[int]) -> Ring:
    """Returns the ring of some devices; between nodes it uses one adapter of each."""
    if len(devices) == 1:
        return Ring(1, math.inf, 0.0, 0.0)
    pairs = hops(devices)
    seconds = [cluster.route(d, e).latency for d, e in pairs]
    return Ring(len(devices), _slowest_hop(cluster, pairs), sum(seconds), max(seconds))


def all_rails_ring(cluster: Cluster, nodes: Sequence[Sequence[int]]) -> Ring:
    """Returns the ring of the nodes, on as many adapters at once as the members of each node have.

    Its latency and the bandwidth of one adapter are those of the leaders, the first members of the nodes.
    """
    leaders = device_ring(cluster, [local[0] for local in nodes])
    if len(nodes) == 1:
        return leaders
    parallel = min(_rails(cluster, nodes[i - 1], nodes[i]) for i in range(len(nodes)))
    return leaders._replace(bandwidth=leaders.bandwidth * parallel)


def slowest_rate_inside(cluster: Cluster, nodes: Sequence[Sequence[int]]) -> float:
    """Returns the bytes/s of the slowest ring inside a node; infinite if no node has several members."""
    return min(device_ring(cluster, local).bandwidth for local in nodes)


def _rails(cluster: Cluster, source: Sequence[int], target: Sequence[int]) -> int:
    """Returns how many transfers the links between these devices of two nodes allow at the same time."""
    # A route between nodes holds a link on the sender's side, then one on the receiver's side.
    leaving = {cluster.route(d, target[0]).resources[0] for d in source}
    arriving = {cluster.route(source[0], e).resources[-1] for e in target}
    return min(len(leaving), len(arriving))


def _slowest_hop(cluster: Cluster, pairs: Iterable[Hop]) -> float:
    """Returns the bytes/s of the slowest of some hops at the same time; hops that use one link take turns.

    `resources` of a route are the numbers of the links that a transfer occupies (clusters/topology.py).
    """
    load: dict[int, float] = defaultdict(float)  # by link: seconds for a byte on every hop
    for d, e in pairs:
        route = cluster.route(d, e)
        for link in set(route.resources):
            load[link] += 1 / route.bandwidth
    return 1 / max(load.values()) if load else math.inf


class DirectExchange(NamedTuple):
    """The messages of a group whose members all send one to each other."""

    per_byte: float  # seconds for which the busiest link is in use, if every message has one byte
    latency: float  # seconds, of the pair with the highest latency


def direct_exchange(
    cluster: Cluster, nodes: Sequence[Sequence[int]], *, inside_share: float = 1.0
) -> DirectExchange:
    """Counts how long each link is in use while every member sends a byte to every other member.

    Returns the time of the busiest link and the highest latency. inside_share: the share of the bandwidth
    inside nodes that the messages get.
    """
    load: dict[int, float] = defaultdict(float)  # by link, seconds
    latency = 0.0
    for local in nodes:
        for d, e in permutations(local, 2):
            route = cluster.route(d, e)
            latency = max(latency, route.latency)
            for link in set(route.resources):
                load[link] += 1 / (route.bandwidth * inside_share)
    # Nodes with equal networks below one leaf switch have equal routes: one of them stands for all.
    similar_nodes: dict[object, list[Sequence[int]]] = {}
    for local in nodes:
        node = cluster.devices[local[0]].node
        network = cluster.node_networks[node]
        # network.leaf: number of nodes below each leaf switch; 0: one switch for all nodes
        leaf = node // network.leaf if network is not None and network.leaf else 0
        similar_nodes.setdefault((network, leaf), []).append(local)
    for local, remote_nodes in product(nodes, similar_nodes.values()):
        remote = next((members for members in remote_nodes if members is not local), None)
        if remote is None:
            continue
        local_count = len(local) if any(members is local for members in remote_nodes) else 0
        count = sum(map(len, remote_nodes)) - local_count  # of members on these other nodes
        for d in local:
            sent, received = cluster.route(d, remote[0]), cluster.route(remote[0], d)
            latency = max(latency, sent.latency)
            # Between nodes, d occupies its own link (its adapter, say) to send, and to receive: the first
            # link of the one route, and the last link of the other.
            load[sent.resources[0]] += count / sent.bandwidth
            load[received.resources[-1]] += count / received.bandwidth
    return DirectExchange(max(load.values()), latency)
