"""Stores the first failure on a rank and wakes all threads that wait there; each of them raises it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RankFailure:
    """The first failure on this rank, if there is one.

    notify(reason): called once, without any lock held, so that the caller can inform other ranks.
    """

    def __init__(self, notify: Callable[[str], None] | None) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._events: list[threading.Event] = []
        self._error_type: type[Exception] = RuntimeError
        self._cause: BaseException | None = None
        self.reason = ""  # empty: all is well

    def register(self, event: threading.Event) -> threading.Event:
        """Makes a failure set this event, too; returns it. Threads wait for it, then call `check`."""
        self._events.append(event)
        return event

    def set_reason(
        self,
        reason: str,
        error_type: type[Exception] = RuntimeError,
        *,
        cause: BaseException | None = None,
        notify: bool = True,
    ) -> None:
        """Sets the failure, unless there is one already.

        error_type: the exception that `check` raises. notify: whether other ranks are informed.
        """
        with self._lock:
            if self.reason:
                return
            self._error_type, self._cause = error_type, cause
            self.reason = reason  # set last: other threads read it without the lock
        for event in self._events:
            event.set()
        if notify and self._notify is not None:
            self._notify(reason)

    def set_exception(self, error: Exception) -> None:
        """Sets the failure from an exception.

        Its class is kept if it is ValueError or TimeoutError, which can be made from a message alone. Any
        other class becomes a RuntimeError.
        """
        error_type = type(error) if type(error) in (ValueError, TimeoutError) else RuntimeError
        self.set_reason(str(error), error_type, cause=error)

    def check(self) -> None:
        """Raises the failure if there is one: a new exception each time, because threads share it."""
        if self.reason:
            raise self._error_type(self.reason) from self._cause
