"""The links of a cluster, numbered: a pair (out, in) for each device, bus and NIC."""

# a: a node, d: a device

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raddle.clusters.devices import Link, Network

Pair = tuple[int, int]


@dataclass(frozen=True)
class Ports:
    """Links by name, and whose they are; only those that a transfer can hold."""

    names: tuple[str, ...]
    device: Mapping[int, Pair]  # by device, where its node's link is not shared
    bus: Mapping[int, Pair]  # by node: towards higher devices, towards lower devices
    nic: Mapping[int, Pair]  # by device, though a node's devices may share one


def number_links(
    members: Sequence[range], inside: Sequence[Link | None], between: Sequence[Network | None]
) -> Ports:
    """Number the links of nodes with these devices."""
    names: list[str] = []
    device: dict[int, Pair] = {}
    bus: dict[int, Pair] = {}
    nic: dict[int, Pair] = {}
    for a, (devices, link, network) in enumerate(zip(members, inside, between, strict=True)):
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
    """Two links, or one that serves both ways."""
    first = len(names)
    if not duplex:
        names.append(owner)
        return first, first
    names.extend(f"{owner} {way}" for way in directions)
    return first, first + 1
