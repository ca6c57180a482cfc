"""What both kinds of wire do with frames that arrive, and with the first thing that goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from torch import Tensor

from raddle.transport.wire import Frame, OnFailure, OnMessage, refusal_reason


class Inbox:
    """Where frames go; until `open`, nobody is there to take them."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self._limits: Mapping[int, int] | None = None
        self._on_message: OnMessage | None = None

    def expect(self, limits: Mapping[int, int]) -> None:
        """How many bytes a frame of each item has at most."""
        self._limits = dict(limits)

    def open(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        self.opened.set()

    def refusal(self, frame: Frame, nbytes: int) -> str:
        """What is wrong with a frame; empty where nothing is."""
        return refusal_reason(frame, nbytes, self._limits)

    def deliver(self, source: int, frame: Frame, payload: Tensor) -> None:
        assert self._on_message is not None
        self._on_message(source, frame, payload)


class WireFailure:
    """Tells of the first failure of an end; others only follow from it."""

    def __init__(self) -> None:
        self.reason = ""  # empty: all is well
        self._on_failure: OnFailure | None = None
        self._ignoring = False
        self._lock = threading.Lock()

    def set_callback(self, on_failure: OnFailure) -> None:
        """Whom to tell."""
        self._on_failure = on_failure

    def ignore_further(self) -> None:
        """What goes wrong from now on, this end has done itself."""
        self._ignoring = True

    def record(self, reason: str) -> bool:
        """Whether it is the first, and somebody is to be told."""
        with self._lock:
            if self.reason or self._ignoring:
                return False
            self.reason = reason
            return True

    def notify(self, reason: str) -> None:
        """Outside of all locks."""
        assert self._on_failure is not None
        self._on_failure(reason)

    def report(self, reason: str) -> None:
        """Notes it, and tells if it is the first."""
        if self.record(reason):
            self.notify(reason)
