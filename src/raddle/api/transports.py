"""Messages between ranks, and child processes that end when their parent ends.

A wire sends gradients to parameter servers (push) and updated values back (pull). A `Frame` is the header
of such a message, and `PUSH` is one of its kinds. `starter_env` marks child processes, in which
`end_with_parent` then watches the parent.
"""

from __future__ import annotations

from raddle.transport.base import Transport
from raddle.transport.orphans import end_with_parent, starter_env
from raddle.transport.process_transport import ProcessTransport
from raddle.transport.socket_wire import SocketWire
from raddle.transport.wire import PUSH, Frame

__all__ = [
    "PUSH", "Frame", "ProcessTransport", "SocketWire", "Transport", "end_with_parent", "starter_env",
]  # fmt: skip
