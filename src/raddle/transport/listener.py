"""Where a rank listens while others call it for the first time."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from typing import NamedTuple


class Door(NamedTuple):
    """A socket that listens, and where others find it; of a local one the host is a name, the port 0."""

    server: socket.socket
    hosts: list[str]  # to try one after the other
    port: int

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()


def network_door(backlog: int, host: str | None = None) -> Door:
    server = open_door(backlog)
    return Door(server, [host] if host else own_hosts(), server.getsockname()[1])


def local_door(backlog: int) -> Door:
    """For processes of this machine: by a name that nobody else has, and no file."""
    name = f"\0raddle {secrets.token_hex()}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(name)
    server.listen(backlog)
    return Door(server, [name], 0)


def call_at(host: str, port: int, seconds: float) -> socket.socket:
    """A line to whoever listens there; an OSError if nobody does."""
    if port:
        return socket.create_connection((host, port), max(0.001, seconds))
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(max(0.001, seconds))
    try:
        line.connect(host)
    except OSError:
        line.close()
        raise
    return line


def open_door(backlog: int) -> socket.socket:
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


def own_hosts() -> list[str]:
    """Where others reach this rank: its address towards MASTER_ADDR.

    Where that name leads to this very machine, the name itself as well: others know it by that. Without
    such a name ranks may be on several machines all the same: then the machine's own name is tried last.
    """
    master = os.environ.get("MASTER_ADDR", "")
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(
            master or "127.0.0.1", 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing, but the kernel chooses an address of ours
            own = str(probe.getsockname()[0])
        if not master:
            return [own, socket.gethostname()]
        local = own.startswith("127.") or own == "::1"
        return [own, master] if local and master != own else [own]
    return ["127.0.0.1", socket.gethostname()]
