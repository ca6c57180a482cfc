"""Makes and removes the network namespaces and the links of a lab (emulated hosts on this machine)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from raddle.errors import InputError
from raddle.lab import names
from raddle.lab.commands import call, call_json
from raddle.lab.processes import block_interrupts, end_processes, processes_in
from raddle.lab.status import free_subnet, namespaces

CONGESTION_CONTROL = "cubic"  # Linux's default


def build(lab: str, rates: Sequence[int]) -> None:
    """Make a lab with one host for each rate (bits per second); after an error, nothing of it remains."""
    if namespaces(lab):
        raise InputError(
            f"there is a lab '{lab}' already: remove it with `{names.raddle_command('down', lab)}`."
        )
    subnet = free_subnet()
    if subnet is None:
        raise InputError("the subnets 10.77.0.0 to 10.77.255.0 are all taken: remove a lab.")
    network = names.namespace(lab, names.NETWORK)
    # If two processes make the same lab at once, one of them fails here, before it has anything to remove.
    call("ip", "netns", "add", network)
    try:
        _bridge(network, names.bridge_address(subnet))
        for host, rate in enumerate(rates):
            _host(names.namespace(lab, host), network, names.bridge_port(host), rate)
            _address(names.namespace(lab, host), subnet, names.address(subnet, host))
    except BaseException:
        remove(lab)
        raise


def remove(lab: str) -> tuple[list[str], set[int]]:
    """End the processes in a lab and remove it; return its namespaces and the ids of these processes."""
    with block_interrupts():
        lab_namespaces = namespaces(lab)
        if os.getpid() in processes_in(lab_namespaces):
            raise InputError(f"this runs inside the lab '{lab}': remove it from outside.")
        ended = end_processes(lambda: processes_in(lab_namespaces))
        # The namespace of the network is the last: until then no other lab can have this name.
        for namespace in reversed(lab_namespaces):
            _delete(namespace)
    return lab_namespaces, ended


def _bridge(network: str, address: str) -> None:
    """Make the bridge in the namespace `network`."""
    call("ip", "-n", network, "link", "add", "name", names.BRIDGE, "type", "bridge")
    call("ip", "-n", network, "addr", "add", f"{address}/24", "dev", names.BRIDGE)
    _set_up(network, names.BRIDGE)


def _host(namespace: str, network: str, port: str, rate: int) -> None:
    """Make the namespace of a host and its link to the bridge, limited to `rate` at both ends.

    network: the namespace of the bridge; port: the bridge's end of the link; rate: bits per second.
    """
    call("ip", "netns", "add", namespace)
    call("ip", "-n", namespace, "link", "set", "dev", "lo", "up")
    link = ["link", "add", "name", names.INTERFACE, "type", "veth"]
    call("ip", "-n", namespace, *link, "peer", "name", port, "netns", network)
    call("ip", "-n", network, "link", "set", "dev", port, "master", names.BRIDGE)
    # For both ends of the link: a namespace, and an interface in it.
    for where, device in ((network, port), (namespace, names.INTERFACE)):
        # tbf: tc's token bucket, which limits the rate at which the interface sends.
        bucket = ["tbf", "rate", f"{rate}bit", "burst", "256kb", "latency", "50ms"]
        call("tc", "-n", where, "qdisc", "add", "dev", device, "root", *bucket)
        _set_up(where, device)


def _address(namespace: str, subnet: int, address: str) -> None:
    """Give a host its address, and a route to all others that says how TCP controls congestion.

    Machines differ in this: with bbr, connections that share a link leave up to a fifth of its rate unused.
    """
    device = ["dev", names.INTERFACE]
    call("ip", "-n", namespace, "addr", "add", f"{address}/24", *device, "noprefixroute")
    route = [names.network_prefix(subnet), *device, "src", address]
    call("ip", "-n", namespace, "route", "add", *route, "congctl", CONGESTION_CONTROL)


def _set_up(namespace: str, device: str) -> None:
    """Switch an interface on."""
    # addrgenmode none: no IPv6 address. So an idle host sends nothing, and gloo finds only one address.
    quiet = ["addrgenmode", "none"] if Path("/proc/net/if_inet6").exists() else []
    call("ip", "-n", namespace, "link", "set", "dev", device, *quiet, "up")


def _delete(namespace: str) -> None:
    """Remove a namespace; it is no error if another process removes it at the same time."""
    try:
        call("ip", "netns", "del", namespace)
    except InputError:
        if namespace in {row["name"] for row in call_json("ip", "netns", "list")}:
            raise  # if it does not exist any more, another process has just removed it
