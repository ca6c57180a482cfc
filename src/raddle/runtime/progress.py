"""Shows the progress of a run on stderr: one changing line on a terminal, about ten lines in a log file."""

from __future__ import annotations

import sys
import time
from statistics import median

LINES = 10  # lines in all, about, if stderr is not a terminal
REFRESH_SECONDS = 0.1  # between changes of the line on a terminal


class Progress:
    """Prints a line of progress; call `step` after each step.

    steps: number of steps of the run; samples: number of samples of a step; shown: False prints nothing.
    """

    def __init__(self, steps: int, samples: int, *, shown: bool) -> None:
        self.steps, self.samples, self.shown = steps, samples, shown
        self.on_terminal = sys.stderr.isatty()
        self.last_shown = 0.0

    def step(self, done: int, seconds: list[float], loss: float) -> None:
        """Shows the state after `done` steps. seconds: the time of each step so far."""
        if not self.shown:
            return
        recent = median(seconds[-20:])  # of the last 20 steps: smooth, but follows changes of speed
        rate = self.samples / recent
        text = f"step {done}/{self.steps}  {1e3 * recent:.2f} ms  {rate:.4g} samples/s  loss {loss:.6g}"
        if self.on_terminal:
            if done == self.steps or time.perf_counter() - self.last_shown > REFRESH_SECONDS:
                self.last_shown = time.perf_counter()
                end = "\n" if done == self.steps else ""
                print(f"\r{text}\x1b[K", end=end, file=sys.stderr, flush=True)
        elif done in (1, self.steps) or done % max(1, self.steps // LINES) == 0:
            print(text, file=sys.stderr, flush=True)
