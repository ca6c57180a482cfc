"""What both kinds of wire do with frames that arrive, and with the first thing that goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from torch import Tensor

from raddle.transport.wire import Arrive, Fail, Frame, refusal


class Inbox:
    """Where frames go; until `open`, nobody is there to take them."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self._limits: Mapping[int, int] | None = None
        self._arrive: Arrive | None = None

    def expect(self, limits: Mapping[int, int]) -> None:
        """How many bytes a frame of each item has at most."""
        self._limits = dict(limits)

    def open(self, arrive: Arrive) -> None:
        self._arrive = arrive
        self.opened.set()

    def refusal(self, frame: Frame, nbytes: int) -> str:
        """What is wrong with a frame; empty where nothing is."""
        return refusal(frame, nbytes, self._limits)

    def take(self, source: int, frame: Frame, payload: Tensor) -> None:
        assert self._arrive is not None
        self._arrive(source, frame, payload)


class FirstFailure:
    """Tells of the first failure of an end; others only follow from it."""

    def __init__(self) -> None:
        self.reason = ""  # empty: all is well
        self._fail: Fail | None = None
        self._ended = False
        self._lock = threading.Lock()

    def listen(self, fail: Fail) -> None:
        """Whom to tell."""
        self._fail = fail

    def end(self) -> None:
        """What goes wrong from now on, this end has done itself."""
        self._ended = True

    def note(self, reason: str) -> bool:
        """Whether it is the first, and somebody is to be told."""
        with self._lock:
            if self.reason or self._ended:
                return False
            self.reason = reason
            return True

    def tell(self, reason: str) -> None:
        """Outside of all locks."""
        assert self._fail is not None
        self._fail(reason)

    def report(self, reason: str) -> None:
        """Notes it, and tells if it is the first."""
        if self.note(reason):
            self.tell(reason)
