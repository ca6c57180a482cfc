"""Summarises a cluster as plain data, for the table of `raddle clusters` and for its `--json`.

Units: bytes, bytes/s, FLOP/s and seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, groupby, islice
from typing import Any

from raddle.clusters.topology import Cluster

MAX_ROUTES = 24  # a summary of a cluster with many kinds of nodes lists no more routes than this


def summarise(cluster: Cluster) -> dict[str, Any]:
    """Returns kinds of devices, counts, example routes (see `_routes`) and the full description."""
    description = cluster.to_dict()
    counts = Counter(device.kind for device in cluster.devices)
    return {
        "name": cluster.name,
        "devices": len(cluster.devices),
        "nodes": cluster.nodes,
        "links": len(cluster.links),
        "homogeneous": cluster.homogeneous,  # all devices are of one kind
        "fingerprint": cluster.fingerprint(),  # a hash of devices and links, without the name
        "kinds": [
            {"kind": kind, "count": counts[kind], **properties}
            for kind, properties in description["devices"].items()
        ],
        "routes": _routes(cluster),
        "description": description,
    }


def _routes(cluster: Cluster) -> list[dict[str, Any]]:
    """Returns example routes (paths between two devices), for each set of equal nodes (see `_groups`):

    - inside a node, and between two nodes of the set;
    - between two groups of devices in a node, and between two leaf switches, if there are any;
    - from this set to each other set.
    """
    groups = _groups(cluster)
    inside: list[Sequence[int]] = []
    pairs: list[Sequence[int]] = []
    for nodes in groups:
        devices, link = cluster.members(nodes[0]), cluster.node_links[nodes[0]]
        network = cluster.node_networks[nodes[0]]
        if len(devices) > 1:
            inside.append(devices[:2])
        if link is not None and link.groups is not None and len(devices) > link.groups.size > 1:
            inside.append([devices[0], devices[-1]])
        if len(nodes) > 1:
            pairs.append(nodes[:2])
        if network is not None and 1 < network.leaf < len(nodes):
            pairs.append([nodes[0], nodes[-1]])
    pairs += [[a[0], b[0]] for a, b in combinations(groups[:MAX_ROUTES], 2)]
    between = [[cluster.members(a)[0], cluster.members(b)[0]] for a, b in pairs]
    ends = [(pair, "inside") for pair in inside] + [(pair, "between") for pair in between]
    return [
        _route(cluster, source, target, where)
        for (source, target), where in islice(ends, MAX_ROUTES)
    ]


def _groups(cluster: Cluster) -> list[list[int]]:
    """Returns the sets of equal nodes: consecutive nodes with equal devices, link and network."""

    def content(a: int) -> object:
        """Returns the properties of node a that decide whether it equals another node."""
        kinds = [cluster.devices[d].kind for d in cluster.members(a)]
        return kinds, cluster.node_links[a], cluster.node_networks[a]

    return [list(group) for _, group in groupby(range(cluster.nodes), key=content)]


def _route(cluster: Cluster, source: int, target: int, where: str) -> dict[str, Any]:
    """Returns a route as plain data; where: "inside" a node or "between" nodes."""
    route = cluster.route(source, target)
    return {
        "where": where,
        "source": source,
        "target": target,
        "bandwidth": route.bandwidth,
        "latency": route.latency,
        # the names of the links that a transfer occupies
        "holds": [cluster.links[resource] for resource in route.resources],
    }
