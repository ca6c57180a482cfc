"""Where a rank listens while others call it for the first time."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from typing import NamedTuple


class Listener(NamedTuple):
    """A socket that listens, and where others find it; of a local one the host is a name, the port 0."""

    server: socket.socket
    hosts: list[str]  # to try one after the other
    port: int

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()


def listen_on_network(backlog: int, host: str | None = None) -> Listener:
    server = open_server_socket(backlog)
    return Listener(server, [host] if host else reachable_hosts(), server.getsockname()[1])


def listen_locally(backlog: int) -> Listener:
    """For processes of this machine: by a name that nobody else has, and no file."""
    name = f"\0raddle {secrets.token_hex()}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(name)
    server.listen(backlog)
    return Listener(server, [name], 0)


def connect_to(host: str, port: int, seconds: float) -> socket.socket:
    """A line to whoever listens there; an OSError if nobody does."""
    if port:
        return socket.create_connection((host, port), max(0.001, seconds))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(max(0.001, seconds))
    try:
        connection.connect(host)
    except OSError:
        connection.close()
        raise
    return connection


def open_server_socket(backlog: int) -> socket.socket:
    """At a port of its own: of loopback alone where all ranks are known to be on this machine.

    They are if MASTER_ADDR says so. A name other than localhost does not, even if it leads to loopback
    here: to other machines it may be this one's address in the network.
    """
    master = os.environ.get("MASTER_ADDR", "")
    if master == "::1":
        return socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=backlog)
    if master == "localhost" or master.startswith("127."):
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=backlog)


def reachable_hosts() -> list[str]:
    """Where others reach this rank: its address towards MASTER_ADDR.

    Where that name leads to this very machine, the name itself as well: others know it by that. Without
    such a name ranks may be on several machines all the same: then the machine's own name is tried last.
    """
    master = os.environ.get("MASTER_ADDR", "")
    with contextlib.suppress(OSError):
        family, socket_kind, _, _, address = socket.getaddrinfo(
            master or "127.0.0.1", 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket_kind) as probe:
            probe.connect(address)  # sends nothing, but the kernel chooses an address of ours
            address_of_this = str(probe.getsockname()[0])
        if not master:
            return [address_of_this, socket.gethostname()]
        local = address_of_this.startswith("127.") or address_of_this == "::1"
        return (
            [address_of_this, master] if local and master != address_of_this else [address_of_this]
        )
    return ["127.0.0.1", socket.gethostname()]
