"""Reads from `ip` and `tc` which labs (emulated hosts) exist, and the state of their hosts.

The namespaces of a lab are called raddle-LAB-PART, where PART is the number of a host, or "net" for the
namespace of the bridge (names.py).
"""

from __future__ import annotations

from typing import Any

from raddle.lab import names
from raddle.lab.commands import call_json
from raddle.lab.rates import rate_text


def labs() -> list[str]:
    """Return the names of all labs, complete or not."""
    return sorted({lab for lab, _ in _labs_and_hosts()})


def namespaces(lab: str) -> list[str]:
    """Return the namespaces of a lab: that of the network first, then those of the hosts in order."""
    parts = [part for lab_name, part in _labs_and_hosts() if lab_name == lab]
    order = sorted(parts, key=lambda part: -1 if part == names.NETWORK else int(part))
    return [names.namespace(lab, part) for part in order]


def host_rows(lab: str) -> list[dict[str, Any]]:
    """Return a row for each host of a lab (see `_row`); values that an incomplete lab lacks are None."""
    hosts = sorted(
        int(part)
        for lab_name, part in _labs_and_hosts()
        if lab_name == lab and part != names.NETWORK
    )
    return [_row(lab, host) for host in hosts]


def traffic(namespace: str) -> tuple[int, int]:
    """Return the bytes that a host has sent and received, including the headers of all protocols."""
    link = call_json("ip", "-n", namespace, "-s", "link", "show", "dev", names.INTERFACE)[0]
    return link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]


def free_subnet() -> int | None:
    """Return the number of the first subnet whose bridge address no lab uses; None if there is none.

    Labs that are made at the same moment may get the same one. They work nevertheless, as no packet leaves
    the namespaces of a lab.
    """
    networks = [
        names.namespace(lab, part) for lab, part in _labs_and_hosts() if part == names.NETWORK
    ]
    links = [
        link for network in networks for link in call_json("ip", "-n", network, "addr", "show")
    ]
    taken = {_address(link) for link in links}
    free = (n for n in range(names.SUBNETS) if names.bridge_address(n) not in taken)
    return next(free, None)


def _labs_and_hosts() -> list[tuple[str, str]]:
    """Return (name of the lab, number of the host or "net") of all namespaces of labs."""
    parsed = (names.parse_namespace(row["name"]) for row in call_json("ip", "netns", "list"))
    return [parts for parts in parsed if parts is not None]


def _row(lab: str, host: int) -> dict[str, Any]:
    """Return the state of a host: its address, its rate, and the bytes sent and received."""
    namespace = names.namespace(lab, host)
    links = call_json("ip", "-n", namespace, "-s", "addr", "show")
    link = next((link for link in links if link["ifname"] == names.INTERFACE), {})
    stats = link.get("stats64", {})
    rate = _rate(namespace)
    return {
        "lab": lab,
        "host": host,
        "namespace": namespace,
        "interface": link.get("ifname"),
        "address": _address(link),
        "rate": None if rate is None else rate_text(rate),
        "bits_per_s": rate,
        "sent": stats.get("tx", {}).get("bytes"),
        "received": stats.get("rx", {}).get("bytes"),
    }


def _address(link: dict[str, Any]) -> str | None:
    """Return the IPv4 address of a link, if it has one."""
    inet = (entry for entry in link.get("addr_info", ()) if entry["family"] == "inet")
    return next((entry["local"] for entry in inet), None)


def _rate(namespace: str) -> int | None:
    """Return the rate limit of a host in bits per second, as the kernel has it."""
    for queue in call_json("tc", "-n", namespace, "qdisc", "show"):
        if queue["dev"] == names.INTERFACE and queue["kind"] == "tbf":
            return 8 * int(queue["options"]["rate"])  # tc prints bytes per second
    return None
