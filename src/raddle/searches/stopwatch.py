"""How long a search takes, without what is no search: compiling, and capturing the module again.

numba compiles a function when it is first called, and pipelines capture the module for a micro-batch. Both
happen amid a search, and neither says anything of how hard it is to find a plan. So the watch stands still
meanwhile, for budgets as for the `search_s` that is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Stopwatch:
    """Seconds since it was made, less those for which it was paused."""

    def __init__(self) -> None:
        self.started_at = perf_counter()
        self.paused_seconds = 0.0
        self.paused_since: float | None = None
        self.depth = 0  # of pauses inside of pauses: compiled functions call others
        self.listening = False

    @property
    def seconds(self) -> float:
        now = perf_counter() if self.paused_since is None else self.paused_since
        return now - self.started_at - self.paused_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        if not self.depth:
            self.paused_since = perf_counter()
        self.depth += 1

    def resume(self) -> None:
        self.depth -= 1
        if not self.depth and self.paused_since is not None:
            self.paused_seconds += perf_counter() - self.paused_since
            self.paused_since = None

    @contextmanager
    def paused_while_compiling(self) -> Iterator[None]:
        """Is paused whenever numba compiles something in the block."""
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
