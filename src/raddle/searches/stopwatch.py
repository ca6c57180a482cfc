"""A stopwatch for searches that is paused while numba compiles and while a model is captured again.

numba compiles a function when it is first called, and a pipeline search captures the model for each size of
micro-batch. Both happen during a search, but are no part of it. So they count neither towards the time
budget nor towards the reported `search_s`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Stopwatch:
    """Counts the seconds since the stopwatch was made, without those for which it was paused."""

    def __init__(self) -> None:
        self.started_at = perf_counter()
        self.paused_seconds = 0.0
        self.paused_since: float | None = None
        self.depth = 0  # number of open pauses: compiling one function may compile another
        self.listening = False  # whether a paused_for_jit block is active

    @property
    def seconds(self) -> float:
        """The counted seconds."""
        now = perf_counter() if self.paused_since is None else self.paused_since
        return now - self.started_at - self.paused_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the stopwatch during the `with` block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """Pauses the stopwatch until `resume` has been called once for each pause."""
        if not self.depth:
            self.paused_since = perf_counter()
        self.depth += 1

    def resume(self) -> None:
        """Ends one pause; the stopwatch runs again when no pause is open."""
        self.depth -= 1
        if not self.depth and self.paused_since is not None:
            self.paused_seconds += perf_counter() - self.paused_since
            self.paused_since = None

    @contextmanager
    def paused_for_jit(self) -> Iterator[None]:
        """Pauses the stopwatch whenever numba compiles in the `with` block. Blocks may be nested."""
        if self.listening:
            yield
            return
        from numba.core.event import Event, Listener, install_listener  # only searches need numba

        stopwatch = self

        class PauseListener(Listener):
            def on_start(self, event: Event) -> None:
                stopwatch.pause()

            def on_end(self, event: Event) -> None:
                stopwatch.resume()

        self.listening = True
        try:
            with install_listener("numba:compile", PauseListener()):
                yield
        finally:
            self.listening = False
