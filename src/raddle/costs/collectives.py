"""Seconds of an all-reduce by its algorithm.

ring           2(P-1) messages of bytes/P on every link of the ring
tree           2 log2(P) messages of all bytes, up and down
hierarchical   a ring in each node, a ring between their first devices, and back
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from raddle.clusters import Cluster


def slowest_hop(cluster: Cluster, ring: Sequence[int]) -> tuple[float, float]:
    """Bandwidth and latency of the slowest hop of a ring; links that several hops share are divided."""
    pairs = list(zip(ring, [*ring[1:], ring[0]], strict=True))
    load: dict[int, int] = {}
    for a, b in pairs:
        for resource in set(cluster.route(a, b).resources):
            load[resource] = load.get(resource, 0) + 1
    bandwidth, latency = math.inf, 0.0
    for a, b in pairs:
        route = cluster.route(a, b)
        bandwidth = min(bandwidth, route.bandwidth / max(load[r] for r in route.resources))
        latency = max(latency, route.latency)
    return bandwidth, latency


def ring_seconds(cluster: Cluster, devices: Sequence[int], nbytes: float) -> float:
    p = len(devices)
    bandwidth, latency = slowest_hop(cluster, devices)
    return 2 * (p - 1) * (latency + nbytes / p / bandwidth)


def tree_seconds(cluster: Cluster, devices: Sequence[int], nbytes: float) -> float:
    bandwidth, latency = slowest_hop(cluster, devices)
    return 2 * math.ceil(math.log2(len(devices))) * (latency + nbytes / bandwidth)


def hierarchical_seconds(cluster: Cluster, devices: Sequence[int], nbytes: float) -> float:
    nodes: dict[int, list[int]] = {}
    for d in devices:
        nodes.setdefault(cluster.devices[d].node, []).append(d)
    inside = max(
        (ring_seconds(cluster, own, nbytes) for own in nodes.values() if len(own) > 1), default=0.0
    )
    heads = [own[0] for own in nodes.values()]
    return inside + (ring_seconds(cluster, heads, nbytes) if len(heads) > 1 else 0.0)


def all_reduce_seconds(cluster: Cluster, devices: Sequence[int], nbytes: float) -> float:
    """By the fastest algorithm, as collective libraries choose."""
    algorithms = (ring_seconds, tree_seconds, hierarchical_seconds)
    return min(algorithm(cluster, devices, nbytes) for algorithm in algorithms)


def server_bytes(count: int, nbytes: int) -> int:
    """Bytes to and from a server that is none of the devices, as OptCNN and FlexFlow count them."""
    return 2 * count * nbytes


def all_reduce_bytes(count: int, nbytes: int) -> int:
    """Bytes that all devices together send in a ring."""
    return 2 * (count - 1) * nbytes
