"""Sizes the kernel's send buffer of a connection by the rate at which the connection delivers.

A more urgent message cannot overtake what is in the buffer, so it should be small. If it is too small, the
sending thread has to refill it again and again, and each time it waits for a core that another thread
computes on. Between two hosts of the lab whose cores compute, 128 KiB carried 170 to 260 MB/s over a link
of 4 Gbit/s, 512 KiB carried 340; at 1 and 2 Gbit/s there was no difference. So the buffer has room for
what the connection delivers in a fixed time.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Sequence

SMALLEST, LARGEST = 128 * 1024, 512 * 1024  # bytes
SECONDS = 1.1e-3  # of sending that a buffer has room for
# bytes/s: above this rate copying is what takes time, and a larger buffer was slower (20 Gbit/s in the lab)
FASTEST = 1e9
RATES = 15  # so many rates decide, as a single one can be wrong by a factor of 4
# The place of tcpi_delivery_rate (bytes/s, 8 bytes) in Linux's struct tcp_info (linux/tcp.h).
_RATE_AT = 160
_RATE = struct.Struct("=Q")


class SendBuffer:
    """The send buffer of one connection, which has SMALLEST bytes at first.

    Call `adapt` after each message that was sent.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rates: deque[float] = deque(maxlen=RATES)
        self.nbytes = SMALLEST

    def adapt(self) -> None:
        """Notes the rate of the connection, and changes the buffer if another size fits clearly better."""
        rate = delivery_rate(self._connection)
        if rate:
            self._rates.append(rate)
        if len(self._rates) == RATES:
            wanted = buffer_bytes(self._rates)
            if not 0.75 < wanted / self.nbytes < 1.5:
                self.nbytes = wanted
                set_send_buffer(self._connection, wanted)


def set_send_buffer(connection: socket.socket, nbytes: int) -> None:
    """Sets the size of the kernel's send buffer; Linux takes twice as much, for its own needs."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)


def buffer_bytes(rates: Sequence[float]) -> int:
    """Returns the bytes of a buffer for a connection that has delivered at these rates (bytes/s).

    >>> [buffer_bytes([gbit * 1.2e8]) // 1024 for gbit in (0.1, 1, 2, 4, 20)]
    [128, 128, 257, 512, 128]
    """
    # The third quartile: while cores compute, most rates say how often the thread could run, not what the
    # link can carry; and a few are far too high.
    rate = sorted(rates)[3 * len(rates) // 4]
    if rate > FASTEST:
        return SMALLEST
    return int(min(LARGEST, max(SMALLEST, rate * SECONDS)))


def delivery_rate(connection: socket.socket) -> float:
    """Returns the bytes/s at which the kernel saw this TCP connection deliver; 0.0 if it does not say."""
    if not hasattr(socket, "TCP_INFO"):
        return 0.0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0.0
    if len(info) < _RATE_AT + _RATE.size:
        return 0.0
    return float(_RATE.unpack_from(info, _RATE_AT)[0])
