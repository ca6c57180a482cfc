"""Where a rank listens while others call it for the first time."""

from __future__ import annotations

import os
import socket


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
