"""Numbers the links of a cluster: a pair (out, in) for each device port, bus, switch, NIC and lane.

A transfer between two devices holds (occupies) links until it ends; no other transfer uses them meanwhile.
Links are on levels. From the inside out: the port inside a group of devices, the port (or bus, or the
uplink of the group's switch) inside the node, the NIC below a leaf switch, and the lane from the leaf
switch to the spine. A transfer holds the links of the outermost level that it crosses, one at its source
and one at its target, so two at most. Its use of inner levels is neglected. This does not make a single
transfer faster, as an outer link is at most as fast; but a device may send inside its group and out of it
at the same time.

A lane is a link from a leaf switch to the spine, as fast as a NIC. A leaf switch that is oversubscribed f
times has one lane for f NICs of its nodes. NICs are assigned to lanes in turn (static routing), so NICs of
one node have different lanes if there are enough.
"""

# a: a node, d: a device, g: the place of a group's first device in its node, i: a place in a list

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raddle.clusters.devices import Link, Network

Pair = tuple[int, int]  # numbers of two links, one for each direction


@dataclass
class Ports:
    """The numbered links. `names[i]` is the name of link i; the other fields say whose link it is.

    These fields map a device, or a node, to a pair of link numbers (out, in): for data that leave it and
    for data that reach it.
    """

    names: list[str] = field(default_factory=list)
    # By device, in nodes with groups: its port inside the group.
    group: dict[int, Pair] = field(default_factory=dict)
    # By device: its port, or the uplink of its group's switch; not in nodes with a bus.
    device: dict[int, Pair] = field(default_factory=dict)
    # By node with a bus: (towards higher, towards lower device numbers).
    bus: dict[int, Pair] = field(default_factory=dict)
    # By device: its NIC; the devices of a node may share one.
    nic: dict[int, Pair] = field(default_factory=dict)
    # By device, below oversubscribed leaf switches: its lane.
    lane: dict[int, Pair] = field(default_factory=dict)


def number_links(
    members: Sequence[range], inside: Sequence[Link | None], between: Sequence[Network | None]
) -> Ports:
    """Numbers all links of a cluster, and returns them. Each argument is a list by node.

    members: the indices of the node's devices. inside: the link that joins them. between: its NICs.
    """
    ports = Ports()
    leaves: dict[int, list[int]] = {}  # the nodes of each leaf switch that is oversubscribed
    for a, network in enumerate(between):
        if network is not None and network.leaf and network.oversubscription > 1:
            leaves.setdefault(a // network.leaf, []).append(a)
    for a, (devices, link, network) in enumerate(zip(members, inside, between, strict=True)):
        if link is not None and len(devices) > 1:
            _number_inside(ports, a, devices, link)
        if network is not None and len(members) > 1:
            leaf_nodes = leaves.get(a // network.leaf) if network.leaf else None
            # Transfers between the nodes of an oversubscribed leaf switch hold NICs, others hold lanes. So
            # nothing holds the NICs of a node that is alone below its leaf switch.
            if leaf_nodes is None or len(leaf_nodes) > 1:
                ports.nic.update(_number_nics(ports, a, devices, network))
    if len(leaves) > 1:
        for leaf, nodes in leaves.items():
            _number_lanes(ports, leaf, nodes, members, between)
    return ports


def _number_inside(ports: Ports, a: int, devices: range, link: Link) -> None:
    """Numbers the links inside node a, and adds them to `ports`."""
    names = {d: f"node{a}.device{i}" for i, d in enumerate(devices)}
    groups, size = link.groups, len(devices)
    if groups is not None:
        size = groups.size
        for g in range(0, len(devices), size):
            members = devices[g : g + size]
            kind = "" if groups.uplink else " bridge"
            if len(members) > 1:
                ports.group.update(
                    {d: _pair(ports.names, f"{names[d]}{kind}", groups.duplex) for d in members}
                )
        if size >= len(devices):
            return  # one group: nothing goes between groups
    if groups is not None and groups.uplink:
        for g in range(0, len(devices), size):
            pair = _pair(ports.names, f"node{a}.switch{g // size}", link.duplex)
            ports.device.update(dict.fromkeys(devices[g : g + size], pair))
    elif link.shared:
        ports.bus[a] = _pair(ports.names, f"node{a} bus", link.duplex, directions=("up", "down"))
    else:
        ports.device.update({d: _pair(ports.names, names[d], link.duplex) for d in devices})


def _number_nics(ports: Ports, a: int, devices: range, network: Network) -> Mapping[int, Pair]:
    """Numbers the NICs of node a; returns for each device the pair of links of its NIC."""
    count, nics = len(devices), dict[int, Pair]()
    adapters = [network.adapter(i, count) for i in range(count)]
    several = len(set(adapters)) > 1
    for i in range(count):
        if network.per_device:
            name = f"node{a}.device{i} nic"
        else:
            name = f"node{a} nic{adapters[i]}" if several else f"node{a} nic"
        if adapters[i] not in nics:
            nics[adapters[i]] = _pair(ports.names, name, network.duplex)
    return {d: nics[adapter] for d, adapter in zip(devices, adapters, strict=True)}


def _number_lanes(
    ports: Ports,
    leaf: int,
    nodes: Sequence[int],
    members: Sequence[range],
    between: Sequence[Network | None],
) -> None:
    """Numbers the lanes from a leaf switch to the spine, and assigns the NICs of its nodes to them."""
    nics: dict[tuple[int, int], list[int]] = {}  # (node, adapter) -> devices
    for a in nodes:
        network = between[a]
        assert network is not None
        for i, d in enumerate(members[a]):
            nics.setdefault((a, network.adapter(i, len(members[a]))), []).append(d)
    network = between[nodes[0]]
    assert network is not None
    lanes = [
        _pair(ports.names, f"leaf{leaf}.lane{i}", network.duplex)
        for i in range(-(-len(nics) // network.oversubscription))
    ]
    for i, devices in enumerate(nics.values()):
        ports.lane.update(dict.fromkeys(devices, lanes[i % len(lanes)]))


def _pair(
    names: list[str], owner: str, duplex: bool, *, directions: tuple[str, str] = ("out", "in")
) -> Pair:
    """Adds the names of two links, one for each direction, to `names`; returns the links' numbers.

    Without duplex, one link serves both directions: its number is returned twice. owner: whose links they
    are, the start of their names.
    """
    first = len(names)
    if not duplex:
        names.append(owner)
        return first, first
    names.extend(f"{owner} {way}" for way in directions)
    return first, first + 1
