"""Reads from the system which labs there are, and what their hosts have: no file keeps it."""

from __future__ import annotations

from typing import Any

from raddle.lab import names
from raddle.lab.commands import call_json
from raddle.lab.rates import rate_text


def labs() -> list[str]:
    """The names of all labs, whole or half made."""
    return sorted({lab for lab, _ in _labs_and_hosts()})


def namespaces(lab: str) -> list[str]:
    """A lab's namespaces: that of the network, then those of the hosts in their order."""
    parts = [part for lab_name, part in _labs_and_hosts() if lab_name == lab]
    order = sorted(parts, key=lambda part: -1 if part == names.NETWORK else int(part))
    return [names.namespace(lab, part) for part in order]


def host_rows(lab: str) -> list[dict[str, Any]]:
    """One row per host; what a half-made lab does not have is None."""
    hosts = sorted(
        int(part)
        for lab_name, part in _labs_and_hosts()
        if lab_name == lab and part != names.NETWORK
    )
    return [_row(lab, host) for host in hosts]


def traffic(namespace: str) -> tuple[int, int]:
    """Bytes that a host has sent and received, with the headers of all layers."""
    link = call_json("ip", "-n", namespace, "-s", "link", "show", "dev", names.INTERFACE)[0]
    return link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]


def free_subnet() -> int | None:
    """The first subnet that no lab has marked as its own.

    Labs that are made at the same moment may find the same one. They work none the less: no packet
    leaves the namespaces of a lab.
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
    parsed = (names.parse_namespace(row["name"]) for row in call_json("ip", "netns", "list"))
    return [parts for parts in parsed if parts is not None]


def _row(lab: str, host: int) -> dict[str, Any]:
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
    inet = (entry for entry in link.get("addr_info", ()) if entry["family"] == "inet")
    return next((entry["local"] for entry in inet), None)


def _rate(namespace: str) -> int | None:
    """Bits per second, as the kernel shapes them."""
    for queue in call_json("tc", "-n", namespace, "qdisc", "show"):
        if queue["dev"] == names.INTERFACE and queue["kind"] == "tbf":
            return 8 * int(queue["options"]["rate"])  # tc prints bytes per second
    return None
