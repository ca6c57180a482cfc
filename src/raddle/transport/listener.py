"""Listening sockets, to which other ranks connect: over the network, or local ones on this machine.

rendezvous.py uses them to connect all ranks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from typing import NamedTuple


class Listener(NamedTuple):
    """A listening socket and its address. A local (Unix) socket has its name in `hosts`, and port 0."""

    server: socket.socket
    hosts: list[str]  # addresses, to be tried in this order
    port: int

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()


def listen_on_network(backlog: int, host: str | None = None) -> Listener:
    """Listens at a free TCP port.

    backlog: how many callers may queue. host: the address for other ranks; None: `reachable_hosts` finds
    it.
    """
    server = open_server_socket(backlog)
    return Listener(server, [host] if host else reachable_hosts(), server.getsockname()[1])


def listen_locally(backlog: int) -> Listener:
    """Listens for processes of this machine, on an abstract Unix socket with a random name."""
    name = f"\0raddle {secrets.token_hex()}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(name)
    server.listen(backlog)
    return Listener(server, [name], 0)


def connect_to(host: str, port: int, seconds: float) -> socket.socket:
    """Connects to a listener within these seconds; raises OSError if there is none.

    port: 0 if `host` is the name of a local socket.
    """
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
    """Listens at a free port: only on the loopback interface if all ranks are certainly on this machine.

    They are if MASTER_ADDR is localhost or a loopback address. Another name is not enough, even if it
    resolves to a loopback address here: other machines may resolve it to this machine's network address.
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
    """Returns addresses under which other ranks may reach this one.

    The first is the address of the interface through which this machine reaches MASTER_ADDR. If that is
    loopback, MASTER_ADDR itself is the second. Without MASTER_ADDR ranks may still be on several machines,
    so the host name is the second.
    """
    master = os.environ.get("MASTER_ADDR", "")
    with contextlib.suppress(OSError):
        # Any port would do: nothing is sent.
        family, socket_kind, _, _, address = socket.getaddrinfo(
            master or "127.0.0.1", 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket_kind) as probe:
            probe.connect(address)  # sends nothing; the kernel chooses this side's address
            this_host = str(probe.getsockname()[0])
        if not master:
            return [this_host, socket.gethostname()]
        is_loopback = this_host.startswith("127.") or this_host == "::1"
        return [this_host, master] if is_loopback and master != this_host else [this_host]
    return ["127.0.0.1", socket.gethostname()]  # MASTER_ADDR cannot be resolved or reached
