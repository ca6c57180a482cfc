"""Counts the devices of a cluster's nodes: the groups of HSDP and of tensor parallelism."""

from __future__ import annotations

from collections import Counter

from raddle.clusters import Cluster


def devices_per_node(cluster: Cluster) -> int:
    """Returns how many devices every node has; 0 if nodes differ, have one device, or there is one node."""
    counts = Counter(device.node for device in cluster.devices)
    sizes = set(counts.values())
    return sizes.pop() if len(counts) > 1 and len(sizes) == 1 and sizes != {1} else 0
