"""What the time of a collective depends on: the members by node, their rings, and the loads of links."""

# a, b: nodes; d, e: devices, as indices into cluster.devices

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
    """The hops (source, target) of a ring; the last one leads back to the first device."""
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def by_node(cluster: Cluster, devices: Iterable[int]) -> list[list[int]]:
    """The devices of each node, in ascending order: as in libraries, the given order does not count."""
    nodes: dict[int, list[int]] = {}
    for d in sorted(devices):
        nodes.setdefault(cluster.devices[d].node, []).append(d)
    return list(nodes.values())


def whole_ring(cluster: Cluster, nodes: Sequence[Sequence[int]]) -> Ring:
    """The ring of all members, node by node; between nodes, one ring for each adapter at the same time.

    Each of several rings begins at another device of a node, so that they share its ports evenly.
    """
    if len(nodes) == 1:
        return device_ring(cluster, nodes[0])
    size, bandwidth, latency, longest = leader_ring(cluster, nodes)
    for local in nodes:
        # Inside a node the ring is open: it leaves the node from the last device.
        chain = list(pairwise(local))
        bandwidth = min(bandwidth, _slowest_hop(cluster, chain))
        seconds = [cluster.route(d, e).latency for d, e in chain]
        size, latency = size + len(chain), latency + sum(seconds)
        longest = max([longest, *seconds])
    return Ring(size, bandwidth, latency, longest)


def device_ring(cluster: Cluster, devices: Sequence[int]) -> Ring:
    """The ring of some devices; between nodes it uses one adapter of each."""
    if len(devices) == 1:
        return Ring(1, math.inf, 0.0, 0.0)
    pairs = hops(devices)
    seconds = [cluster.route(d, e).latency for d, e in pairs]
    return Ring(len(devices), _slowest_hop(cluster, pairs), sum(seconds), max(seconds))


def leader_ring(cluster: Cluster, nodes: Sequence[Sequence[int]]) -> Ring:
    """The ring of the nodes, on as many adapters at once as the members of each node have.

    Its latency and the bandwidth of one adapter are those of the leaders, the first members of the nodes.
    """
    leaders = device_ring(cluster, [local[0] for local in nodes])
    if len(nodes) == 1:
        return leaders
    parallel = min(_rails(cluster, nodes[i - 1], nodes[i]) for i in range(len(nodes)))
    return leaders._replace(bandwidth=leaders.bandwidth * parallel)


def slowest_rate_inside(cluster: Cluster, nodes: Sequence[Sequence[int]]) -> float:
    """Bytes/s of the slowest ring inside a node; infinite if no node has several members."""
    return min(device_ring(cluster, local).bandwidth for local in nodes)


def _rails(cluster: Cluster, source: Sequence[int], target: Sequence[int]) -> int:
    """How many transfers the links between these devices of two nodes allow at the same time."""
    leaving = {cluster.route(d, target[0]).resources[0] for d in source}
    arriving = {cluster.route(source[0], e).resources[-1] for e in target}
    return min(len(leaving), len(arriving))


def _slowest_hop(cluster: Cluster, pairs: Iterable[Hop]) -> float:
    """The bytes/s of the slowest of some hops at the same time; hops that use one link take turns.

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

    inside_share: of the bandwidths inside nodes, what the messages get.
    """
    load: dict[int, float] = defaultdict(float)  # by link, seconds
    latency = 0.0
    for local in nodes:
        for d, e in permutations(local, 2):
            route = cluster.route(d, e)
            latency = max(latency, route.latency)
            for link in set(route.resources):
                load[link] += 1 / (route.bandwidth * inside_share)
    # Members with equal networks below one leaf switch stand for each other as a message's far end.
    far: dict[object, list[Sequence[int]]] = {}
    for local in nodes:
        node = cluster.devices[local[0]].node
        network = cluster.node_networks[node]
        leaf = node // network.leaf if network is not None and network.leaf else 0
        far.setdefault((network, leaf), []).append(local)
    for local, others in product(nodes, far.values()):
        there = next((other for other in others if other is not local), None)
        if there is None:
            continue
        count = sum(map(len, others)) - (len(local) if any(o is local for o in others) else 0)
        for d in local:
            sent, received = cluster.route(d, there[0]), cluster.route(there[0], d)
            latency = max(latency, sent.latency)
            load[sent.resources[0]] += count / sent.bandwidth
            load[received.resources[-1]] += count / received.bandwidth
    return DirectExchange(max(load.values()), latency)
