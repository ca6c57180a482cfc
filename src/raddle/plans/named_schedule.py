"""The declaration of a named schedule: how its rows (one per worker) are made, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from raddle.plans.schedule import Schedule


@dataclass(frozen=True)
class NamedSchedule:
    """A named schedule, as a file in schedules/ declares it."""

    name: str
    make: Callable[[int, int], Schedule]  # (stages, micro-batches), with one stage on each worker
    summary: str  # one sentence, for lists
    # (stages, workers, micro-batches), if a worker may have several stages (chunks).
    make_chunked: Callable[[int, int, int], Schedule] | None = None
    # Without a flush: which weights a micro-batch uses, "latest" or "2bw" (asynchronous.py); "": there is
    # a flush.
    version_rule: str = ""
    # Without a flush: stages -> micro-batches of a step; None: any number.
    per_step: Callable[[int], int] | None = None
    allows_replicas: bool = False  # a stage may be replicated on several devices
    even_stages: bool = False  # it needs an even number of stages
    serial: bool = False  # a micro-batch begins when the one before has ended

    @property
    def chunks(self) -> int:
        """Stages on each worker, by default."""
        return 1 if self.make_chunked is None else 2

    @cached_property
    def splits_backward(self) -> bool:
        """Whether the schedule has W actions for the gradients of parameters."""
        return self.make(2, 2).split  # any example: 2 stages, 2 micro-batches
