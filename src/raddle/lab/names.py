"""Makes and parses the names and addresses in a lab: network namespaces, interfaces and IP addresses.

A lab is a set of emulated hosts on one machine. Each host is a network namespace; one more namespace has
the bridge that connects them (see the picture in raddle.lab).
"""

from __future__ import annotations

import re

from raddle.errors import InputError

DEFAULT = "lab"
INTERFACE = "lab0"  # the same on every host, so that all can use the same GLOO_SOCKET_IFNAME
BRIDGE = "bridge"
NETWORK = "net"  # in place of the number of a host, for the namespace with the bridge
SUBNETS = 256  # 10.77.0.0/24 to 10.77.255.0/24, one for each lab

_LAB = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_NAMESPACE = re.compile(rf"raddle-({_LAB.pattern})-(0|[1-9]\d*|{NETWORK})")


def check_name(lab: str) -> str:
    """Return the name of a lab; raises InputError if it cannot be part of the name of a namespace."""
    if not _LAB.fullmatch(lab):
        raise InputError(
            f"'{lab}' cannot name a lab: use up to 32 lower-case letters, digits and inner dashes."
        )
    return lab


def namespace(lab: str, host: int | str) -> str:
    """Return the name of the namespace of a host; with host=NETWORK, of the one with the bridge."""
    return f"raddle-{lab}-{host}"


def parse_namespace(namespace: str) -> tuple[str, str] | None:
    """Return (lab, host) of the name of a namespace: the inverse of `namespace`.

    None if the namespace belongs to no lab.
    """
    # The last dash is the one before the host, so the labs `a` and `a-0` are not confused.
    match = _NAMESPACE.fullmatch(namespace)
    return None if match is None else (match[1], match[3])


def bridge_port(host: int) -> str:
    """Return the name of the bridge's end of the link to a host."""
    return f"host{host}"


def address(subnet: int, host: int) -> str:
    """Return the address of a host, 10.77.SUBNET.(HOST + 1); it exists only inside the lab."""
    return f"10.77.{subnet}.{host + 1}"


def network_prefix(subnet: int) -> str:
    """Return the addresses of a lab as a prefix, for a route."""
    return f"10.77.{subnet}.0/24"


def bridge_address(subnet: int) -> str:
    """Return the address of the bridge; if a bridge has it, the subnet is in use. Hosts have .1 to .64."""
    return f"10.77.{subnet}.254"


def raddle_command(verb: str, lab: str) -> str:
    """Return the command line for a subcommand of `raddle lab`, such as `raddle lab down --name mine`."""
    return f"raddle lab {verb}" + ("" if lab == DEFAULT else f" --name {lab}")
