"""A wire that waits for the failing rank's own message before it reports a closed connection.

A closed connection does not say why. The message over the failure channel (failure_channel.py) does, but it
may arrive later. A wire sends slices of parameters (items) between ranks (wire.py). A frame is the header
of a message; `limits`: by item, the largest payload in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from raddle.transport.failure_channel import DIED
from raddle.transport.wire import Counters, Frame, OnFailure, OnMessage, Wire

GRACE = 3.0  # seconds to wait for the failing rank's message


class PatientWire:
    """Wraps a wire, and delays its reports of closed connections.

    wait_for_failure(seconds): waits for a report over the failure channel. If a report comes in time, the
    wire does not report its closed connection.
    """

    def __init__(self, wire: Wire, wait_for_failure: Callable[[float], object | None]) -> None:
        self.rank, self.size, self.sent = wire.rank, wire.size, wire.sent
        self._wire, self._wait_for_failure = wire, wait_for_failure

    @property
    def counters(self) -> Counters:
        return self._wire.counters

    def expect(self, limits: Mapping[int, int]) -> None:
        self._wire.expect(limits)

    def start(self, on_message: OnMessage, on_failure: OnFailure) -> None:
        def report(reason: str) -> None:
            # A reason that ends with DIED: the connection was closed without a message.
            if not reason.endswith(DIED) or self._wait_for_failure(GRACE) is None:
                on_failure(reason)

        self._wire.start(on_message, report)

    def send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        try:
            self._wire.send(target, frame, payload, priority)
        except RuntimeError as error:
            if str(error).endswith(DIED):
                self._wait_for_failure(GRACE)  # so that a failure report comes before this error
            raise

    def close(self) -> None:
        self._wire.close()
