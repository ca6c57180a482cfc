"""Times the steps of a run, without the time in which torch.compile works.

session.py adds the steps, summary.py prints their median.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StepTimes(NamedTuple):
    """The losses and times that one rank measured, step by step."""

    losses: list[float]
    seconds: list[float]  # without compile_seconds
    compile_seconds: list[float]

    def add(self, count: int, losses: Sequence[float], elapsed: float, compiling: float) -> None:
        """Adds steps that took `elapsed` seconds together, of which `compiling` were spent on compiling."""
        self.losses.extend(losses)
        self.seconds.extend([(elapsed - compiling) / max(1, count)] * count)
        self.compile_seconds.extend([compiling / max(1, count)] * count)


def measured_steps(
    seconds: Sequence[float], compile_seconds: Sequence[Sequence[float]], warmup: int
) -> list[float]:
    """Returns the times (seconds) of the steps after the warm-up in which no rank compiled.

    If there are none, it returns the times of all steps after the warm-up. compile_seconds: for each rank,
    the seconds of each step. While one rank compiles, others wait for its messages.
    """
    compiling = [max(of_ranks) for of_ranks in zip(*compile_seconds, strict=True)]
    after_warmup = list(zip(seconds, compiling, strict=True))[warmup:]
    undisturbed = [step for step, compiled in after_warmup if not compiled]
    return undisturbed or [step for step, _ in after_warmup]
