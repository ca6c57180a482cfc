"""The first thing that goes wrong on a rank: it wakes all who wait there, and they raise it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RankFailure:
    """`tell` is called once, outside of all locks, so that the caller can warn other ranks."""

    def __init__(self, notify: Callable[[str], None] | None) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._events: list[threading.Event] = []
        self._error_type: type[Exception] = RuntimeError
        self._cause: BaseException | None = None
        self.reason = ""  # empty: all is well

    def register(self, event: threading.Event) -> threading.Event:
        """An event that is set by a failure too: who waits for it asks `check` afterwards."""
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
        """Only the first counts."""
        with self._lock:
            if self.reason:
                return
            self._error_type, self._cause = error_type, cause
            self.reason = reason  # last: others read it without the lock
        for event in self._events:
            event.set()
        if notify and self._notify is not None:
            self._notify(reason)

    def set_exception(self, error: Exception) -> None:
        """What was raised here; of a kind that may not take one sentence, it becomes a RuntimeError."""
        error_type = type(error) if type(error) in (ValueError, TimeoutError) else RuntimeError
        self.set_reason(str(error), error_type, cause=error)

    def check(self) -> None:
        """Raises what went wrong, a new exception for each caller: they are on several threads."""
        if self.reason:
            raise self._error_type(self.reason) from self._cause
