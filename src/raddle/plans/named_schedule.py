"""The declaration of a named pipeline schedule, such as 1f1b: how its rows are made, and what it needs.

A schedule has a row of actions for each worker (schedule.py). A *flush* is the end of a step at which all
micro-batches have ended; asynchronous schedules have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from raddle.plans.schedule import Schedule


@dataclass(frozen=True)
class NamedSchedule:
    """A named schedule, as a file in schedules/ declares it."""

    name: str
    # (stages, micro-batches) -> the schedule with one stage on each worker
    make: Callable[[int, int], Schedule]
    summary: str  # one sentence, for lists
    # (stages, workers, micro-batches) -> the schedule, if a worker may have several stages (chunks)
    make_chunked: Callable[[int, int, int], Schedule] | None = None
    # Without a flush: which weights a micro-batch uses, "latest" or "2bw" (asynchronous.py). "": there is
    # a flush.
    version_rule: str = ""
    # Without a flush: number of stages -> number of micro-batches of a step that a search takes by default;
    # None: there is no default.
    per_step: Callable[[int], int] | None = None
    allows_replicas: bool = False  # whether a stage may be replicated on several devices
    even_stages: bool = False  # whether the number of stages must be even
    serial: bool = False  # whether a micro-batch begins only when the one before has ended

    @property
    def chunks(self) -> int:
        """Stages on each worker, by default."""
        return 1 if self.make_chunked is None else 2

    @cached_property
    def splits_backward(self) -> bool:
        """Whether the schedule has W actions for the gradients of parameters."""
        return self.make(2, 2).split  # any example: 2 stages, 2 micro-batches
