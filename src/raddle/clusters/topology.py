"""A cluster: devices in nodes, and the links that a transfer between two of them holds.

Each link serves one transfer at a time, and a transfer holds one or two:

    inside a node, duplex        the sender's out, the receiver's in
    inside a node, half duplex   the sender's port, the receiver's port
    inside a node, shared        the bus; if duplex, one way of it (to the higher or to the lower device)
    between nodes                the sender's NIC out, the receiver's NIC in; one a node, or one a device

Between nodes the NICs alone are held: on its way to them, a transfer is taken to disturb nobody.
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
from raddle.clusters.devices import Device, Link, Network, Node
from raddle.clusters.ports import Ports, number_links
from raddle.errors import InputError


@dataclass(frozen=True)
class Route:
    """The way from one device to another."""

    resources: tuple[int, ...]  # the links that a transfer holds, as indices into Cluster.links
    bandwidth: float  # bytes/s, the smallest on the way
    latency: float  # seconds


@dataclass(frozen=True)
class Cluster:
    """Devices, standing together node by node, and for each node its link and its network."""

    name: str
    devices: tuple[Device, ...]
    node_links: tuple[Link | None, ...]  # a node; None only where it has one device
    node_networks: tuple[Network | None, ...]  # a node; None only where it is the only one

    def __post_init__(self) -> None:
        if not self.devices:
            raise self._error("has no devices: give it at least one")
        nodes = [a for a, _ in groupby(device.node for device in self.devices)]
        if nodes != list(range(len(nodes))):
            raise self._error(
                f"has devices on nodes {nodes[:8]}: list them node by node, from 0 on"
            )
        if not len(nodes) == len(self.node_links) == len(self.node_networks):
            raise self._error(
                f"has {len(nodes)} nodes, {len(self.node_links)} links inside and {len(self.node_networks)} "
                "networks: give one of each a node"
            )
        for a, link, network in zip(nodes, self.node_links, self.node_networks, strict=True):
            if link is None and len(self.members(a)) > 1:
                raise self._error(f"has several devices and no link on node {a}: give it one")
            if network is None and len(nodes) > 1:
                raise self._error(f"has several nodes and no network on node {a}: give it one")
        kinds: dict[str, dict[str, Any]] = {}
        for device in self.devices:
            if kinds.setdefault(device.kind, _properties(device)) != _properties(device):
                raise self._error(
                    f"has two different kinds of device {device.kind!r}: give them names of their own"
                )

    def _error(self, what: str) -> InputError:
        return InputError(f"cluster {self.name} {what}.")

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.devices[-1].node + 1

    @property
    def homogeneous(self) -> bool:
        """Whether all devices are of one kind; their links may still differ."""
        return all(device.kind == self.devices[0].kind for device in self.devices)

    @property
    def links(self) -> tuple[str, ...]:
        """The names of the links, as "node0.device1 out" or "node0 nic in"."""
        return self._ports.names

    def members(self, node: int) -> range:
        """The devices of a node."""
        return self._by_node[node]

    def first_devices(self, count: int) -> Cluster:
        """The same with its first devices alone."""
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
        """What a transfer from one device to another holds, in constant time."""
        assert source != target, f"device {source} needs no route to itself"
        assert min(source, target) >= 0, f"no device {min(source, target)}"
        a, b = self.devices[source].node, self.devices[target].node
        ports = self._ports
        if a == b:
            link = self.node_links[a]
            assert link is not None
            if link.shared:
                held: tuple[int, ...] = (ports.bus[a][source > target],)
            else:
                held = (ports.device[source][0], ports.device[target][1])
            return Route(held, link.bandwidth, link.latency)
        out, into = self.node_networks[a], self.node_networks[b]
        assert out is not None
        assert into is not None
        return Route(
            (ports.nic[source][0], ports.nic[target][1]),
            min(out.bandwidth, into.bandwidth),
            max(out.latency, into.latency),
        )

    def fingerprint(self) -> str:
        """Devices and links in 16 hex digits; the cluster's name does not count."""
        content = {key: value for key, value in self.to_dict().items() if key != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of a YAML file: `from_dict` reads it back."""
        kinds = {device.kind: _properties(device) for device in self.devices}
        nodes = [
            {"count": len(list(group)), **node}
            for node, group in groupby(self._node_dict(a) for a in range(self.nodes))
        ]
        data: dict[str, Any] = {"name": self.name, "devices": kinds, "nodes": nodes}
        if all(network == self.node_networks[0] for network in self.node_networks):
            for node in nodes:
                node.pop("network", None)
            if self.node_networks[0] is not None:
                data["network"] = vars(self.node_networks[0]).copy()
        return data

    @staticmethod
    def from_dict(data: object, where: str = "cluster", *, name: str | None = None) -> Cluster:
        """Read plain data; `where` begins what is said about a mistake, `name` holds where it has none."""
        return build_cluster(*parse(data, where, name=name))

    def _node_dict(self, a: int) -> dict[str, Any]:
        node: dict[str, Any] = {"devices": [self.devices[d].kind for d in self.members(a)]}
        link, network = self.node_links[a], self.node_networks[a]
        if link is not None:
            node["link"] = vars(link).copy()
        if network is not None:
            node["network"] = vars(network).copy()
        return node

    @cached_property
    def _by_node(self) -> tuple[range, ...]:
        ranges, start = [], 0
        for _, group in groupby(self.devices, key=lambda device: device.node):
            size = sum(1 for _ in group)
            ranges.append(range(start, start + size))
            start += size
        return tuple(ranges)

    @cached_property
    def _ports(self) -> Ports:
        return number_links(self._by_node, self.node_links, self.node_networks)


def _properties(device: Device) -> dict[str, Any]:
    """All of a device but its kind and where it stands."""
    return {
        "flops": dict(device.flops),
        "memory": device.memory,
        "bandwidth": device.bandwidth,
        "overhead": device.overhead,
        "efficiency": dict(device.efficiency),
        "workspace": dict(device.workspace),
        **(
            {"host_overhead": dict(device.host_overhead)}
            if any(device.host_overhead.values())
            else {}
        ),
    }


def build_cluster(name: str, nodes: Sequence[Node]) -> Cluster:
    """Put nodes together; a device's node is where it stands in the list."""
    return Cluster(
        name=name,
        devices=tuple(_devices_with_nodes(nodes)),
        node_links=tuple(link for _, link, _ in nodes),
        node_networks=tuple(network for _, _, network in nodes),
    )


def _devices_with_nodes(nodes: Sequence[Node]) -> Iterator[Device]:
    for a, (devices, _, _) in enumerate(nodes):
        by_kind: dict[str, Device] = {}  # one object a kind and node: 1,024 devices stay light
        for device in devices:
            if device.kind not in by_kind:
                by_kind[device.kind] = replace(device, node=a)
            yield by_kind[device.kind]
