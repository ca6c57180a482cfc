"""Numbers the links of a cluster: a pair (out, in) for each device port, bus and NIC."""

# a: a node, d: a device

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raddle.clusters.devices import Link, Network

Pair = tuple[int, int]  # numbers of two links, one for each direction


@dataclass(frozen=True)
class Ports:
    """The numbered links. `names[i]` is the name of link i; the other fields say whose link it is."""

    names: tuple[str, ...]
    device: Mapping[int, Pair]  # by device: (out, in), if its node has no shared bus
    bus: Mapping[int, Pair]  # by node with a bus: (towards higher, towards lower device numbers)
    nic: Mapping[int, Pair]  # by device: (out, in); the devices of a node may share a NIC


def number_links(
    members: Sequence[range], inside: Sequence[Link | None], between: Sequence[Network | None]
) -> Ports:
    """Numbers the links. All arguments are by node.

    members: the indices of its devices. inside: the link that joins them. between: its network adapter.
    """
    names: list[str] = []
    device: dict[int, Pair] = {}
    bus: dict[int, Pair] = {}
    nic: dict[int, Pair] = {}
    for a, (devices, link, network) in enumerate(zip(members, inside, between, strict=True)):
        # local: device -> its name, which counts devices within the node
        local = {d: f"node{a}.device{i}" for i, d in enumerate(devices)}
        if link is not None and len(devices) > 1:
            if link.shared:
                bus[a] = _pair(names, f"node{a} bus", link.duplex, directions=("up", "down"))
            else:
                device.update({d: _pair(names, local[d], link.duplex) for d in devices})
        if network is not None and len(members) > 1:
            if network.per_device:
                nic.update({d: _pair(names, f"{local[d]} nic", network.duplex) for d in devices})
            else:
                nic.update(dict.fromkeys(devices, _pair(names, f"node{a} nic", network.duplex)))
    return Ports(tuple(names), device, bus, nic)


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
