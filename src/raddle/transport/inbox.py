"""The receiving side of MemoryWire and SocketWire: it checks frames and reports the first failure.

A wire sends slices of parameters (items) between ranks by priority (wire.py). A frame is the header of a
message, which belongs to an item.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from torch import Tensor

from raddle.transport.wire import Frame, OnFailure, OnMessage, refusal_reason


class Inbox:
    """Passes messages that arrive to a callback, which `open` sets."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self._limits: Mapping[int, int] | None = None  # by item: the largest payload in bytes
        self._on_message: OnMessage | None = None

    def expect(self, limits: Mapping[int, int]) -> None:
        """Sets the largest payload of each item, in bytes."""
        self._limits = dict(limits)

    def open(self, on_message: OnMessage) -> None:
        """Sets the callback. From now on messages can be delivered."""
        self._on_message = on_message
        self.opened.set()

    def refusal(self, frame: Frame, nbytes: int) -> str:
        """Returns what is wrong with a frame; an empty text if nothing is."""
        return refusal_reason(frame, nbytes, self._limits)

    def deliver(self, source: int, frame: Frame, payload: Tensor) -> None:
        """Passes a message of rank `source` to the callback."""
        assert self._on_message is not None
        self._on_message(source, frame, payload)


class WireFailure:
    """Reports the first failure of a wire; later ones are consequences of it and are ignored."""

    def __init__(self) -> None:
        self.reason = ""  # empty: no failure
        self._on_failure: OnFailure | None = None
        self._ignoring = False
        self._lock = threading.Lock()

    def set_callback(self, on_failure: OnFailure) -> None:
        """Sets the callback for the failure."""
        self._on_failure = on_failure

    def ignore_further(self) -> None:
        """Ignores failures from now on: this rank closes the wire itself."""
        self._ignoring = True

    def record(self, reason: str) -> bool:
        """Stores a failure. Returns whether it is the first one, for which `notify` is to be called."""
        with self._lock:
            if self.reason or self._ignoring:
                return False
            self.reason = reason
            return True

    def notify(self, reason: str) -> None:
        """Calls the callback. The caller holds no lock."""
        assert self._on_failure is not None
        self._on_failure(reason)

    def report(self, reason: str) -> None:
        """Stores a failure, and calls the callback if it is the first one."""
        if self.record(reason):
            self.notify(reason)
