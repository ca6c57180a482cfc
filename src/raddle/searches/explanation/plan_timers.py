"""Computes the step time of a plan with some tiles changed, for alternatives.py.

`EvaluatorTimer` uses the fast evaluator (simulation/fast). `SimulatorTimer` runs the full simulator; it is
used for plans with features that the evaluator does not support. `space` (searches/plan_space.py) has the
graph, the cluster and the settings of the plan, and all possible splits.
"""

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
    """Time and memory of a step, in nanoseconds and bytes."""

    step_ns: int  # of a single step; if steps overlap, the average of several steps
    compute_ns: int  # computing time of the busiest device
    link_ns: int  # time of messages on the busiest link, without all-reduces of gradients
    held_bytes: np.ndarray  # by device; times PlanTimer.memory_scale it is the peak memory


class PlanTimer(Protocol):
    """Times a plan with changed tiles.

    changes: tilings by operator name, which replace those of the plan.
    """

    plan: Plan
    base: StepTiming  # of the plan without changes
    memory_scale: float  # peak memory divided by StepTiming.held_bytes
    why_simulated: str | None  # the feature that the evaluator does not support; None if it is used
    max_alternatives: int  # how many alternatives to time at most

    def time_step(self, changes: Tiles) -> StepTiming:
        """Return the time and memory of a step; raises InputError if such a plan is impossible."""
        ...

    def timeline(self, changes: Tiles) -> Timeline:
        """Return the simulation of the plan with the changes."""
        ...


def make_timer(space: PlanSpace, plan: Plan, timeline: Timeline) -> PlanTimer:
    """Return the timer for a plan; `timeline` is a simulation of several steps of the plan."""
    plan = replace(plan, steps=1)
    return (
        # unsupported: the feature that the evaluator does not support, in words, or None
        SimulatorTimer(space, plan) if unsupported(plan) else EvaluatorTimer(space, plan, timeline)
    )


class EvaluatorTimer:
    """Times a plan with the fast evaluator, whose times are equal to those of the simulator."""

    why_simulated: str | None = None
    max_alternatives = 300

    def __init__(self, space: PlanSpace, plan: Plan, timeline: Timeline) -> None:
        self.space, self.plan = space, plan
        self.evaluator = Evaluator(space.graph, space.cluster, plan, space.settings.profile)
        self.base = self.time_step({})
        # The evaluator only estimates the memory; the simulation has the real peak.
        self.memory_scale = max(peak_bytes(timeline)) / max(1, int(self.base.held_bytes.max()))

    def time_step(self, changes: Tiles) -> StepTiming:
        """Return the time and memory of a step by the evaluator."""
        # move changes the tiles of the evaluator's plan; restore undoes the change.
        undo = self.evaluator.move(changes)
        step_ns = self.evaluator.time()
        assert step_ns is not None
        # Busy nanoseconds by resource: first the devices, then the links.
        load, count = self.evaluator.load, self.space.device_count
        link_ns = int(load[count:].max()) if len(load) > count else 0
        timing = StepTiming(step_ns, int(load[:count].max()), link_ns, self.evaluator.memory.copy())
        self.evaluator.restore(undo)
        return timing

    def timeline(self, changes: Tiles) -> Timeline:
        """Return the simulation of the plan with the changes."""
        return _simulate(self.space, replace(self.plan, tiles={**self.plan.tiles, **changes}))


class SimulatorTimer:
    """Times a plan by lowering and simulating it again for each change."""

    memory_scale = 1.0
    max_alternatives = 60

    def __init__(self, space: PlanSpace, plan: Plan) -> None:
        self.space, self.plan = space, plan
        self.why_simulated: str | None = unsupported(plan)
        self.base = self.time_step({})

    def time_step(self, changes: Tiles) -> StepTiming:
        """Return the time and memory of a step by a simulation."""
        timeline = self.timeline(changes)
        tasks, devices = timeline.tasks, timeline.program.plan.devices
        # Busy nanoseconds by resource: first the devices, then the links. A task occupies up to two.
        load = np.zeros(tasks.resources, np.int64)
        is_message = tasks.source != tasks.device  # device: of a message, the one that receives it
        for resource in (tasks.first_resource, tasks.second_resource):
            # -1: no resource. On links only messages count, not collectives (StepTiming.link_ns).
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
        """Return the simulation of the plan with the changes."""
        plan = replace(self.plan, tiles={**self.plan.tiles, **changes})
        # plan.order: the order of the all-reduces of parameter slices. With other tiles the parameters have
        # other slices, so this order is not valid.
        if plan.order and changes:
            space = self.space
            plan = with_slice_order(space.graph, plan, space.cluster, space.settings.profile)
        return _simulate(self.space, plan)


def _simulate(space: PlanSpace, plan: Plan) -> Timeline:
    """Return the simulation of a single step or, if steps overlap, of several."""
    profile = space.settings.profile
    if is_asynchronous(plan):
        return simulate_steps(space.graph, plan, space.cluster, profile)
    return simulate(lower(space.graph, plan), space.cluster, profile)
