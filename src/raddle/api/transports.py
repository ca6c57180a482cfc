"""Messages between ranks, and processes that end with the one that started them."""

from __future__ import annotations

from raddle.transport.base import Transport
from raddle.transport.orphans import end_with_parent, marked
from raddle.transport.process_transport import Processes
from raddle.transport.socket_wire import SocketWire
from raddle.transport.wire import PUSH, Frame

__all__ = [
    "PUSH", "Frame", "Processes", "SocketWire", "Transport", "end_with_parent", "marked",
]  # fmt: skip
