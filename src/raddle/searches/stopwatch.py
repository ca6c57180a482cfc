"""The clock of a search: a stopwatch, and the time budget that is measured with it.

The stopwatch is paused while numba compiles and while a model is captured again. numba compiles a function
when it is first called, and a pipeline search captures the model for each size of micro-batch. Both happen
during a search, but are no part of it. So they count neither towards the time budget nor towards the
reported `search_s`.

A `Clock` is handed down to all that a search calls. A loop that improves a plan ends when the clock has
`expired`. What has to be done before there is any result, such as lowering a plan, calls `look` as it goes:
after a tenth of the budget and a second more, `look` raises OutOfTime, and the search returns its best plan
so far. So a search of S seconds is to end within 1.2 x S + 2 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from raddle.errors import OutOfTime

GRACE = (
    0.1  # how much longer than its budget a clock lets a search work, as a fraction of the budget
)
GRACE_SECONDS = 1.0  # the same, in seconds; both are added


class Stopwatch:
    """Counts the seconds since the stopwatch was made, without those for which it was paused."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        """now: returns the time in seconds; None: the time of this machine."""
        self.now = now or (lambda: perf_counter())
        self.started_at = self.now()
        self.paused_seconds = 0.0
        self.paused_since: float | None = None
        self.depth = 0  # number of open pauses: compiling one function may compile another
        self.listening = False  # whether a paused_for_jit block is active

    @property
    def seconds(self) -> float:
        """The counted seconds."""
        now = self.now() if self.paused_since is None else self.paused_since
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
            self.paused_since = self.now()
        self.depth += 1

    def resume(self) -> None:
        """Ends one pause; the stopwatch runs again when no pause is open."""
        self.depth -= 1
        if not self.depth and self.paused_since is not None:
            self.paused_seconds += self.now() - self.paused_since
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


class Clock:
    """The time budget of a search, which begins when the clock is made.

    >>> clock = Clock(30.0)
    >>> clock.look()  # raises OutOfTime after 34 seconds
    >>> clock.expired
    False
    >>> clock.part(0.2).budget <= 6.0
    True
    """

    def __init__(
        self, budget: float, stopwatch: Stopwatch | None = None, *, limit: float = math.inf
    ) -> None:
        """budget, limit: seconds; `look` raises at the limit, or earlier if the grace is used up."""
        self.stopwatch = stopwatch or Stopwatch()
        self.started_at, self.budget = self.stopwatch.seconds, budget
        self.limit = min(limit, budget + GRACE * budget + GRACE_SECONDS)

    @property
    def seconds(self) -> float:
        """The seconds since the clock was made."""
        return self.stopwatch.seconds - self.started_at

    @property
    def seconds_left(self) -> float:
        """The seconds until the clock expires; 0 if it has expired."""
        return max(0.0, self.budget - self.seconds)

    @property
    def expired(self) -> bool:
        """Whether the budget is used up: a loop that improves something should end."""
        return self.seconds >= self.budget

    def look(self) -> None:
        """Raises OutOfTime if the budget and the grace are used up: what is not finished has to be left."""
        if self.seconds >= self.limit:
            raise OutOfTime(f"the budget of {self.budget:g} s is used up")

    def progress(self, step: str) -> dict[str, Any]:
        """Returns a progress report: the step, and how much of the budget is used up."""
        if math.isinf(self.budget):
            return {"step": step}
        return {"step": step, "done": min(self.seconds, self.budget), "of": self.budget}

    def part(self, share: float) -> Clock:
        """Returns a clock for a part of the search that begins now, with a share of this clock's budget.

        The part never ends later than this clock.
        """
        seconds = self.seconds
        budget = max(0.0, min(share * self.budget, self.budget - seconds))
        return Clock(budget, self.stopwatch, limit=self.limit - seconds)

    def part_of_rest(self, share: float) -> Clock:
        """Returns a clock for a part of the search that gets a share of what is left of the budget."""
        seconds = self.seconds
        return Clock(share * self.seconds_left, self.stopwatch, limit=self.limit - seconds)
