"""Defines Cluster: its devices by node, and the links that a transfer between two devices occupies.

Each link serves one transfer at a time. A transfer occupies ("holds") one or two links until it ends:

    inside a node, duplex        the sender's outgoing link and the receiver's incoming link
    inside a node, half duplex   the sender's port and the receiver's port, each used for both directions
    inside a node, shared        the bus; if duplex, one direction of it (to higher or to lower devices)
    inside a group of a node     the two bridges (as NVLink pairs), or the two ports below a PCIe switch
    between PCIe switches        the uplink of the sender's switch (out) and of the receiver's (in)
    between nodes                the sender's NIC (out) and the receiver's NIC (in)
    between leaf switches        if they are oversubscribed: the sender's lane (out), the receiver's (in)

A node has one NIC, or several, or one for each device. A transfer holds the links of the outermost level
that it crosses; the model neglects its use of the levels further inside (ports.py).
"""

# a, b: nodes; d: a device

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from raddle.clusters.description import parse
from raddle.clusters.devices import PLAIN, Collectives, Device, Link, Network, Node, link_dict
from raddle.clusters.ports import Ports, number_links
from raddle.errors import InputError


@dataclass(frozen=True)
class Route:
    """The path of a transfer from one device to another."""

    resources: tuple[int, ...]  # indices into Cluster.links: the links that a transfer holds
    bandwidth: float  # bytes/s, of the slowest link of the path
    latency: float  # seconds


def _error(name: str, predicate: str) -> InputError:
    """Returns an error whose sentence has the cluster of this name as its subject."""
    return InputError(f"cluster {name} {predicate}.")


@dataclass(frozen=True, repr=False)
class Cluster:
    """A cluster. `devices` is sorted by node; a device is named by its index in this list."""

    name: str
    devices: tuple[Device, ...]
    node_links: tuple[Link | None, ...]  # by node; None only if it has one device
    node_networks: tuple[Network | None, ...]  # by node, its NICs; None only if there is one node
    collectives: Collectives = PLAIN

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(device.kind for device in self.devices))
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"<Cluster {self.name}: {len(self.devices)} devices ({kinds}) on {nodes}>"

    def __post_init__(self) -> None:
        if not self.devices:
            raise _error(self.name, "has no devices: give it at least one")
        nodes = [a for a, _ in groupby(device.node for device in self.devices)]
        if nodes != list(range(len(nodes))):
            raise _error(
                self.name, f"has devices on nodes {nodes[:8]}: list them node by node, from 0 on"
            )
        if not len(nodes) == len(self.node_links) == len(self.node_networks):
            raise _error(
                self.name,
                f"has {len(nodes)} nodes, {len(self.node_links)} links inside and "
                f"{len(self.node_networks)} networks: give one of each per node",
            )
        for a, link, network in zip(nodes, self.node_links, self.node_networks, strict=True):
            if link is None and len(self.members(a)) > 1:
                raise _error(self.name, f"has several devices and no link on node {a}: give it one")
            if network is None and len(nodes) > 1:
                raise _error(
                    self.name, f"has several nodes and no network on node {a}: give it one"
                )
        leaves = {(n.leaf, n.oversubscription) for n in self.node_networks if n is not None}
        if len(leaves) > 1:
            raise _error(
                self.name,
                "has networks with different leaf or oversubscription: give all nodes the same",
            )
        kinds: dict[str, dict[str, Any]] = {}
        for device in self.devices:
            if kinds.setdefault(device.kind, _properties(device)) != _properties(device):
                raise _error(
                    self.name,
                    f"has two different kinds of device {device.kind!r}: give them names of their own",
                )

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.devices[-1].node + 1

    @property
    def homogeneous(self) -> bool:
        """Whether all devices are of one kind; their links may still differ."""
        return all(device.kind == self.devices[0].kind for device in self.devices)

    @property
    def links(self) -> tuple[str, ...]:
        """The names of the links, as "node0.device1 out" or "node0 nic in"."""
        return tuple(self._ports.names)

    def members(self, node: int) -> range:
        """Returns the indices of a node's devices."""
        return self._by_node[node]

    def first_devices(self, count: int) -> Cluster:
        """Returns a cluster of the first `count` devices of this one."""
        if count == len(self.devices):
            return self
        nodes = self.devices[count - 1].node + 1
        return replace(
            self,
            devices=self.devices[:count],
            node_links=self.node_links[:nodes],
            node_networks=self.node_networks[:nodes],
        )

    def route(self, source: int, target: int) -> Route:
        """Returns the route of a transfer in constant time; source and target are indices of devices."""
        assert source != target, f"device {source} needs no route to itself"
        assert min(source, target) >= 0, f"no device {min(source, target)}"
        a, b = self.devices[source].node, self.devices[target].node
        ports = self._ports
        if a == b:
            return self._route_inside(a, source, target)
        out, into = self.node_networks[a], self.node_networks[b]
        assert out is not None
        assert into is not None
        crosses_spine = out.leaf and a // out.leaf != b // out.leaf and out.oversubscription > 1
        held = ports.lane if crosses_spine else ports.nic
        return Route(
            (held[source][0], held[target][1]),
            min(out.rate, into.rate),
            max(out.latency, into.latency),
        )

    def _route_inside(self, a: int, source: int, target: int) -> Route:
        """Returns the route between two devices of node a."""
        ports, link, first = self._ports, self.node_links[a], self.members(a)[0]
        assert link is not None
        groups = link.groups
        if groups and (source - first) // groups.size == (target - first) // groups.size:
            pair = (ports.group[source][0], ports.group[target][1])
            return Route(pair, groups.bandwidth * link.efficiency, groups.latency)
        if link.shared and not (groups and groups.uplink):
            # The pair of the bus is (to higher, to lower devices); the comparison is its index, 0 or 1.
            return Route((ports.bus[a][source > target],), link.rate, link.latency)
        return Route((ports.device[source][0], ports.device[target][1]), link.rate, link.latency)

    def fingerprint(self) -> str:
        """Returns a hash of the devices and links, without the cluster's name: 16 hex digits."""
        content = {key: value for key, value in self.to_dict().items() if key != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Returns the cluster as plain data with the keys of a cluster file; `from_dict` reads it back."""
        kinds = {device.kind: _properties(device) for device in self.devices}
        nodes = [
            {"count": len(list(group)), **node}
            for node, group in groupby(self._node_dict(a) for a in range(self.nodes))
        ]
        data: dict[str, Any] = {"name": self.name, "devices": kinds, "nodes": nodes}
        # A network that all nodes have is written once, for the cluster.
        if all(network == self.node_networks[0] for network in self.node_networks):
            for node in nodes:
                node.pop("network", None)
            if self.node_networks[0] is not None:
                data["network"] = link_dict(self.node_networks[0])
        if self.collectives != PLAIN:
            data["collectives"] = {
                **vars(self.collectives),
                "library": self.collectives.library.value,
            }
        return data

    @staticmethod
    def from_dict(data: object, where: str = "cluster", *, name: str | None = None) -> Cluster:
        """Builds a cluster from plain data. where: the file, for errors; name: used if `data` has none."""
        return build_cluster(*parse(data, where, name=name))

    def _node_dict(self, a: int) -> dict[str, Any]:
        """Returns the entry of node a in a cluster file, without `count`."""
        node: dict[str, Any] = {"devices": [self.devices[d].kind for d in self.members(a)]}
        link, network = self.node_links[a], self.node_networks[a]
        if link is not None:
            node["link"] = link_dict(link)
        if network is not None:
            node["network"] = link_dict(network)
        return node

    @cached_property
    def _by_node(self) -> tuple[range, ...]:
        """By node, the indices of its devices."""
        ranges, start = [], 0
        for _, group in groupby(self.devices, key=lambda device: device.node):
            size = sum(1 for _ in group)
            ranges.append(range(start, start + size))
            start += size
        return tuple(ranges)

    @cached_property
    def _ports(self) -> Ports:
        """The numbered links, and which device or node each one belongs to (ports.py)."""
        return number_links(self._by_node, self.node_links, self.node_networks)


def _properties(device: Device) -> dict[str, Any]:
    """Returns all properties of a device except its kind and its node, with the keys of a cluster file."""
    return {
        "flops": dict(device.flops),
        "memory": device.memory,
        "bandwidth": device.bandwidth,
        "overhead": device.overhead,
        **({"launch": device.launch} if device.launch else {}),
        **({"compile": True} if device.compile else {}),
        "efficiency": dict(device.efficiency),
        "workspace": dict(device.workspace),
        **(
            {"host_overhead": dict(device.host_overhead)}
            if any(device.host_overhead.values())
            else {}
        ),
    }


def compiled(cluster: Cluster) -> Cluster:
    """Returns the cluster with devices whose operators torch.compile fuses.

    >>> from raddle.clusters import cluster
    >>> compiled(cluster("h100")).devices[0].compile
    True
    """
    return replace(cluster, devices=tuple(replace(d, compile=True) for d in cluster.devices))


def build_cluster(name: str, nodes: Sequence[Node], collectives: Collectives = PLAIN) -> Cluster:
    """Builds a cluster from its nodes; a node's number is its position in the list."""
    return Cluster(
        name=name,
        devices=tuple(_devices_with_nodes(nodes)),
        node_links=tuple(link for _, link, _ in nodes),
        node_networks=tuple(network for _, _, network in nodes),
        collectives=collectives,
    )


def _devices_with_nodes(nodes: Sequence[Node]) -> Iterator[Device]:
    """Yields all devices, node by node, with the number of their node set."""
    for a, (devices, _, _) in enumerate(nodes):
        by_kind: dict[str, Device] = {}  # one object per kind and node, which saves memory
        for device in devices:
            if device.kind not in by_kind:
                by_kind[device.kind] = replace(device, node=a)
            yield by_kind[device.kind]
