"""Seconds and bytes of an all-reduce among P devices; the fastest of three algorithms counts.

ring           2(P-1) messages of bytes/P on every link of the ring
tree           2 log2(P) messages of all bytes, up and down
hierarchical   a ring inside each node, then a ring of the leaders (the first device of each node)

Between nodes, one ring for each adapter (*rail*) of a node runs at the same time, with its share of the
bytes, as collective libraries do. In the formulas this is a single ring, on links between nodes that are as
fast as all rails together.

The functions with @register_jitable take plain numbers, so that numba can call them too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numba.extending import register_jitable

from raddle.clusters import Cluster
from raddle.costs.links import transfer_seconds


class AllReduceTopology(NamedTuple):
    """What the seconds of an all-reduce depend on, besides its bytes.

    bandwidth and latency are those of the slowest hop of a ring, in bytes/s and seconds. Counts are floats
    because the fast simulation keeps these numbers in one array (simulation/fast/network.py).
    """

    size: float  # number of devices
    bandwidth: float  # of the ring of all devices
    latency: float
    leaders: float  # number of nodes, each of which has a leader
    leaders_bandwidth: float  # of the ring of the leaders
    leaders_latency: float
    node_rings: Sequence[tuple[float, float, float]]  # inside each node: size, bandwidth, latency


def all_reduce_topology(cluster: Cluster, devices: Sequence[int]) -> AllReduceTopology:
    """The topology of an all-reduce among devices, given as indices into cluster.devices."""
    nodes: dict[int, list[int]] = {}
    for d in devices:
        nodes.setdefault(cluster.devices[d].node, []).append(d)
    node_rings = [
        (float(len(local)), *slowest_hop(cluster, local))
        for local in nodes.values()
        if len(local) > 1
    ]
    leaders = [node_devices[0] for node_devices in nodes.values()]
    rails = min(_adapters(cluster, local) for local in nodes.values()) if len(leaders) > 1 else 1
    # with one node there is no ring of leaders, and (1.0, 0.0) is never used
    between = slowest_hop(cluster, leaders, rails) if len(leaders) > 1 else (1.0, 0.0)
    # Node by node: as in collective libraries, a ring leaves a node once, in whatever order it is given.
    whole = slowest_hop(cluster, [d for local in nodes.values() for d in local], rails)
    return AllReduceTopology(float(len(devices)), *whole, float(len(leaders)), *between, node_rings)


def hops(ring: Sequence[int]) -> list[tuple[int, int]]:
    """The hops (source, target) of a ring; the last one leads back to the first device."""
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def _adapters(cluster: Cluster, local: Sequence[int]) -> int:
    """How many network adapters serve these devices of one node: one for each of them, or one for all."""
    network = cluster.node_networks[cluster.devices[local[0]].node]
    return len(local) if network is not None and network.per_device else 1


def slowest_hop(cluster: Cluster, ring: Sequence[int], rails: int = 1) -> tuple[float, float]:
    """The lowest bandwidth and the highest latency of the hops of a ring, perhaps of different hops.

    Hops that use the same link share its bandwidth. `resources` of a route are the numbers of the links
    that a transfer occupies (clusters/topology.py). rails: between nodes, as many rings run at once.
    """
    pairs = hops(ring)
    hops_by_link: dict[int, int] = {}
    for a, b in pairs:
        for resource in set(cluster.route(a, b).resources):
            hops_by_link[resource] = hops_by_link.get(resource, 0) + 1
    bandwidth, latency = math.inf, 0.0
    for a, b in pairs:
        route = cluster.route(a, b)
        share = route.bandwidth / max(hops_by_link[r] for r in route.resources)
        crosses = cluster.devices[a].node != cluster.devices[b].node
        bandwidth = min(bandwidth, share * rails if crosses else share)
        latency = max(latency, route.latency)
    return bandwidth, latency


@register_jitable
def ring_seconds(size: Any, bandwidth: Any, latency: Any, nbytes: Any) -> Any:
    """Seconds of a ring all-reduce; bandwidth and latency of its slowest hop."""
    return 2 * (size - 1) * transfer_seconds(latency, bandwidth, nbytes / size)


@register_jitable
def tree_seconds(size: Any, bandwidth: Any, latency: Any, nbytes: Any) -> Any:
    """Seconds of a tree all-reduce; bandwidth and latency of the slowest hop."""
    return 2 * math.ceil(math.log2(size)) * transfer_seconds(latency, bandwidth, nbytes)


@register_jitable
def hierarchical_seconds(
    leaders: Any, bandwidth: Any, latency: Any, node_rings: Any, nbytes: Any
) -> Any:
    """Seconds of the slowest ring inside a node, plus those of the ring of the leaders.

    node_rings: for each node with several devices, (size, bandwidth, latency) of its ring.
    """
    total = 0.0
    for k in range(len(node_rings)):
        total = max(
            total, ring_seconds(node_rings[k][0], node_rings[k][1], node_rings[k][2], nbytes)
        )
    if leaders > 1:
        total += ring_seconds(leaders, bandwidth, latency, nbytes)
    return total


@register_jitable
def fastest_seconds(
    size: Any, bandwidth: Any, latency: Any,
    leaders: Any, leaders_bandwidth: Any, leaders_latency: Any, node_rings: Any, nbytes: Any,
) -> Any:  # fmt: skip
    """Seconds of the fastest algorithm, as collective libraries choose it; see `AllReduceTopology`."""
    best = min(
        ring_seconds(size, bandwidth, latency, nbytes),
        tree_seconds(size, bandwidth, latency, nbytes),
    )
    return min(
        best, hierarchical_seconds(leaders, leaders_bandwidth, leaders_latency, node_rings, nbytes)
    )


def all_reduce_seconds(cluster: Cluster, devices: Sequence[int], nbytes: float) -> float:
    """Seconds of an all-reduce among devices, given as indices into cluster.devices."""
    return float(fastest_seconds(*all_reduce_topology(cluster, devices), nbytes))


def server_bytes(count: int, nbytes: int) -> int:
    """Bytes between `count` devices and a parameter server that is not one of them, both directions.

    nbytes: of the parameter. OptCNN and FlexFlow count the bytes of synchronisation so.
    """
    return 2 * count * nbytes


def all_reduce_bytes(count: int, nbytes: int) -> int:
    """Bytes that all `count` devices together send in a ring all-reduce of `nbytes`."""
    return 2 * (count - 1) * nbytes


def all_reduce_bytes_by_device(count: int, nbytes: int) -> list[int]:
    """Bytes that each of `count` devices sends; integers that add up to `all_reduce_bytes`."""
    sent = all_reduce_bytes(count, nbytes)
    return [sent * (i + 1) // count - sent * i // count for i in range(count)]
