"""The first thing that goes wrong on a rank: it wakes all who wait there, and they raise it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Failure:
    """`tell` is called once, outside of all locks, so that the caller can warn other ranks."""

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._wakes: list[threading.Event] = []
        self._kind: type[Exception] = RuntimeError
        self._cause: BaseException | None = None
        self.reason = ""  # empty: all is well

    def wakes(self, event: threading.Event) -> threading.Event:
        """An event that is set by a failure too: who waits for it asks `check` afterwards."""
        self._wakes.append(event)
        return event

    def happen(
        self,
        reason: str,
        kind: type[Exception] = RuntimeError,
        *,
        cause: BaseException | None = None,
        tell: bool = True,
    ) -> None:
        """Only the first counts."""
        with self._lock:
            if self.reason:
                return
            self._kind, self._cause = kind, cause
            self.reason = reason  # last: others read it without the lock
        for event in self._wakes:
            event.set()
        if tell and self._tell is not None:
            self._tell(reason)

    def raised(self, error: Exception) -> None:
        """What was raised here; of a kind that may not take one sentence, it becomes a RuntimeError."""
        kind = type(error) if type(error) in (ValueError, TimeoutError) else RuntimeError
        self.happen(str(error), kind, cause=error)

    def check(self) -> None:
        """Raises what went wrong, a new exception for each caller: they are on several threads."""
        if self.reason:
            raise self._kind(self.reason) from self._cause
