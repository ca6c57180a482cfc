"""What a schedule with a name says of itself, beside its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from raddle.plans.schedule import Schedule


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule, as its file in schedules/ declares it."""

    name: str
    make: Callable[[int, int], Schedule]  # (stages, micro-batches), one stage a worker
    summary: str  # in a sentence
    make_chunked: Callable[[int, int, int], Schedule] | None = (
        None  # (stages, workers, micro-batches)
    )
    version_rule: str = ""  # where steps overlap: by which weights are chosen (unflushed.py)
    per_step: Callable[[int], int] | None = None  # micro-batches of a step, by stages; None: any
    allows_replicas: bool = False  # a stage may be on several devices
    even_stages: bool = False  # it needs an even number of stages
    serial: bool = False  # a micro-batch has ended before the next one begins

    @property
    def chunks(self) -> int:
        """Stages on each worker, unless somebody says how many."""
        return 1 if self.make_chunked is None else 2

    @cached_property
    def splits_backward(self) -> bool:
        """Whether it has the gradients of parameters apart."""
        return self.make(2, 2).split
