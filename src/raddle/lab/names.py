"""What things in a lab are called: namespaces, interfaces and addresses."""

from __future__ import annotations

import re

from raddle.errors import InputError

DEFAULT = "lab"
INTERFACE = "lab0"  # the same on every host, so that one GLOO_SOCKET_IFNAME is right for all
BRIDGE = "bridge"
NETWORK = "net"  # stands where a host's number does
SUBNETS = 256

_LAB = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_NAMESPACE = re.compile(rf"raddle-({_LAB.pattern})-(0|[1-9]\d*|{NETWORK})")


def check_name(lab: str) -> str:
    """Refuse a name that a namespace cannot have."""
    if not _LAB.fullmatch(lab):
        raise InputError(
            f"'{lab}' cannot name a lab: use up to 32 lower-case letters, digits and inner dashes."
        )
    return lab


def namespace(lab: str, host: int | str) -> str:
    """The namespace of a host, or with NETWORK the one that holds the bridge."""
    return f"raddle-{lab}-{host}"


def parse_namespace(namespace: str) -> tuple[str, str] | None:
    """`namespace` backwards; None for one that belongs to no lab."""
    # The last dash is the one before the host, so labs `a` and `a-0` are never taken for each other.
    match = _NAMESPACE.fullmatch(namespace)
    return None if match is None else (match[1], match[3])


def bridge_port(host: int) -> str:
    """The bridge's end of a host's link."""
    return f"host{host}"


def address(subnet: int, host: int) -> str:
    """10.77.SUBNET.HOST+1, which exists inside the lab alone."""
    return f"10.77.{subnet}.{host + 1}"


def bridge_address(subnet: int) -> str:
    """Marks a subnet as taken; hosts end at .64."""
    return f"10.77.{subnet}.254"


def raddle_command(verb: str, lab: str) -> str:
    """What to type: `raddle lab down --name mine`."""
    return f"raddle lab {verb}" + ("" if lab == DEFAULT else f" --name {lab}")
