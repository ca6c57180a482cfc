"""The time of a plan with other tiles: by the evaluator or, where it refuses the plan, by simulation."""

# d: device

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from raddle.plans.pipelining import is_asynchronous
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.searches.grids import Tiles
from raddle.searches.plan_space import PlanSpace
from raddle.searches.predict import simulate_steps
from raddle.searches.slice_order import with_slice_order
from raddle.simulation.fast.coverage import unsupported
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import Timeline, simulate


class StepTiming(NamedTuple):
    """What a step of some tiles takes."""

    step_ns: (
        int  # nanoseconds: of one step on its own or, where steps overlap, of a step among others
    )
    compute_ns: int  # of the busiest device
    link_ns: int  # messages on the busiest link; sums of gradients are not among them
    held_bytes: np.ndarray  # bytes by device, which the scale of a `Timer` makes peaks


class PlanTimer(Protocol):
    """A plan whose tiles can be changed."""

    plan: Plan
    base: StepTiming
    memory_scale: float  # of bytes held to a peak
    why_simulated: str | None  # why times are simulated; None where the evaluator gives them
    max_alternatives: int  # other tiles that are worth the time that they take

    def time_step(self, changes: Tiles) -> StepTiming:
        """InputError where no plan can be so."""
        ...

    def timeline(self, changes: Tiles) -> Timeline:
        """The simulation of what is read."""
        ...


def make_timer(space: PlanSpace, plan: Plan, timeline: Timeline) -> PlanTimer:
    """`judged` is the simulation of several steps of the plan."""
    plan = replace(plan, steps=1)
    return (
        SimulatorTimer(space, plan) if unsupported(plan) else EvaluatorTimer(space, plan, timeline)
    )


class EvaluatorTimer:
    """A plan that the evaluator holds: it is exact, and hundreds of tiles are timed in a moment."""

    why_simulated: str | None = None
    max_alternatives = 300

    def __init__(self, space: PlanSpace, plan: Plan, timeline: Timeline) -> None:
        self.space, self.plan = space, plan
        self.evaluator = Evaluator(space.graph, space.cluster, plan, space.settings.profile)
        self.base = self.time_step({})
        # The evaluator estimates what is held, and `judged` knows the peak.
        self.memory_scale = max(peak_bytes(timeline)) / max(1, int(self.base.held_bytes.max()))

    def time_step(self, changes: Tiles) -> StepTiming:
        undo = self.evaluator.move(changes)
        step_ns = self.evaluator.time()
        assert step_ns is not None
        load, count = self.evaluator.load, self.space.device_count
        link_ns = int(load[count:].max()) if len(load) > count else 0
        timing = StepTiming(step_ns, int(load[:count].max()), link_ns, self.evaluator.memory.copy())
        self.evaluator.restore(undo)
        return timing

    def timeline(self, changes: Tiles) -> Timeline:
        return _simulate(self.space, replace(self.plan, tiles={**self.plan.tiles, **changes}))


class SimulatorTimer:
    """A plan that is lowered and simulated with each of the tiles, with all else as the plan has it."""

    memory_scale = 1.0
    max_alternatives = 60

    def __init__(self, space: PlanSpace, plan: Plan) -> None:
        self.space, self.plan = space, plan
        self.why_simulated: str | None = unsupported(plan)
        self.base = self.time_step({})

    def time_step(self, changes: Tiles) -> StepTiming:
        timeline = self.timeline(changes)
        tasks, devices = timeline.tasks, timeline.program.plan.devices
        load = np.zeros(tasks.resources, np.int64)
        is_message = tasks.source != tasks.device  # messages
        for resource in (tasks.first_resource, tasks.second_resource):
            counted = (resource >= 0) & ((resource < devices) | is_message)
            np.add.at(load, resource[counted], tasks.duration[counted])
        load //= timeline.program.plan.steps
        overlapping = is_asynchronous(self.plan)
        step_ns = round(1e9 * timeline.step_seconds) if overlapping else int(timeline.end.max())
        link_ns = int(load[devices:].max(initial=0))
        return StepTiming(
            step_ns, int(load[:devices].max()), link_ns, np.array(peak_bytes(timeline))
        )

    def timeline(self, changes: Tiles) -> Timeline:
        plan = replace(self.plan, tiles={**self.plan.tiles, **changes})
        if plan.order and changes:  # the slices are others: their sums have an order of their own
            space = self.space
            plan = with_slice_order(space.graph, plan, space.cluster, space.settings.profile)
        return _simulate(self.space, plan)


def _simulate(space: PlanSpace, plan: Plan) -> Timeline:
    """One step on its own; several, where they overlap."""
    profile = space.settings.profile
    if is_asynchronous(plan):
        return simulate_steps(space.graph, plan, space.cluster, profile)
    return simulate(lower(space.graph, plan), space.cluster, profile)
