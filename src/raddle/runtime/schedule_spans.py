"""Records when actions of a pipeline schedule ran, and finds those that started too early.

An action of a schedule is a phase of a stage on a micro-batch: F1.0 is the forward of stage 1 on micro-
batch 0. A schedule may say that an action waits for another one. The verification checks on recorded times
that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from raddle.plans import schedule as schedules
from raddle.plans.pipelining import is_asynchronous, schedule_of
from raddle.plans.schedule import Schedule
from raddle.program.checks.schedule_waits import phase_in
from raddle.program.program import Program
from raddle.runtime.actions import Action, Backward, Forward


class Span(NamedTuple):
    """One computation of a rank for an action of the schedule; times in seconds of the host's clock."""

    step: int
    action: str  # such as "F1.0": forward of stage 1, micro-batch 0
    start: float
    end: float


class EarlyStart(NamedTuple):
    """An action that started before the action that it waits for had ended."""

    step: int
    action: str  # started too early
    awaited: str  # should have ended before
    seconds: float  # by how much


class SpanRecorder:
    """Records the actions that wait or are waited for; set `executor.record` to its `record`.

    step: returns the number of the current step.
    """

    def __init__(self, program: Program, step: Callable[[], int]) -> None:
        plan = program.plan
        self._schedule = schedule_of(plan) if plan.stages else Schedule(())
        # Where steps overlap, the schedule numbers micro-batches through all steps: this many per step.
        # Otherwise each step begins again at 0.
        self._per_step = plan.microbatches if is_asynchronous(plan) else 0
        self._step = step
        self._recorded_actions = {action for wait in self._schedule.waits for action in wait}
        self.spans: list[Span] = []

    def record(self, action: Action, start: float, end: float) -> None:
        """Notes an action of the executor, if a wait of the schedule mentions it."""
        if not self._recorded_actions or not isinstance(action, Forward | Backward):
            return
        phase = "R" if isinstance(action, Forward) and action.recomputation else "F"
        phase = action.phase if isinstance(action, Backward) else phase
        key = action.call.key
        micro = key.step * self._per_step + key.micro_batch  # as the schedule numbers it
        # phase_in: a recomputation counts as B; W too, unless the schedule has actions W of its own
        scheduled = schedules.Action(phase_in(self._schedule, phase), action.call.stage, micro)
        if scheduled in self._recorded_actions:
            self.spans.append(Span(self._step(), str(scheduled), start, end))


def early_starts(schedule: Schedule, spans: Iterable[Span]) -> Iterator[EarlyStart]:
    """Yields the actions that started too early for a schedule. spans: of all ranks, on one clock."""
    # (step, action) -> start of its first span, end of its last span
    starts: dict[tuple[int, str], float] = {}
    ends: dict[tuple[int, str], float] = {}
    for step, action, start, end in spans:
        key = (step, action)
        starts[key] = min(start, starts.get(key, start))
        ends[key] = max(end, ends.get(key, end))
    # (action, the action that it waits for)
    waits: Sequence[tuple[str, str]] = [(str(a), str(b)) for a, b in schedule.waits]
    for (step, action), start in starts.items():
        for waiting, awaited in waits:
            if waiting == action and ends.get((step, awaited), start) > start:
                yield EarlyStart(step, waiting, awaited, ends[step, awaited] - start)
