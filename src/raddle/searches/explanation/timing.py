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


class Reading(NamedTuple):
    """What a step of some tiles takes."""

    time: int  # nanoseconds: of one step on its own or, where steps overlap, of a step among others
    compute: int  # of the busiest device
    link: int  # messages on the busiest link; sums of gradients are not among them
    held: np.ndarray  # bytes by device, which the scale of a `Timer` makes peaks


class Timer(Protocol):
    """A plan whose tiles can be changed."""

    plan: Plan
    base: Reading
    scale: float  # of bytes held to a peak
    simulated: str | None  # why times are simulated; None where the evaluator gives them
    most: int  # other tiles that are worth the time that they take

    def read(self, changes: Tiles) -> Reading:
        """InputError where no plan can be so."""
        ...

    def timeline(self, changes: Tiles) -> Timeline:
        """The simulation of what is read."""
        ...


def timer(space: PlanSpace, plan: Plan, judged: Timeline) -> Timer:
    """`judged` is the simulation of several steps of the plan."""
    plan = replace(plan, steps=1)
    return Simulated(space, plan) if unsupported(plan) else Evaluated(space, plan, judged)


class Evaluated:
    """A plan that the evaluator holds: it is exact, and hundreds of tiles are timed in a moment."""

    simulated: str | None = None
    most = 300

    def __init__(self, space: PlanSpace, plan: Plan, judged: Timeline) -> None:
        self.space, self.plan = space, plan
        self.evaluator = Evaluator(space.graph, space.cluster, plan, space.settings.profile)
        self.base = self.read({})
        # The evaluator estimates what is held, and `judged` knows the peak.
        self.scale = max(peak_bytes(judged)) / max(1, int(self.base.held.max()))

    def read(self, changes: Tiles) -> Reading:
        undo = self.evaluator.move(changes)
        time = self.evaluator.time()
        assert time is not None
        load, count = self.evaluator.load, self.space.device_count
        link = int(load[count:].max()) if len(load) > count else 0
        found = Reading(time, int(load[:count].max()), link, self.evaluator.memory.copy())
        self.evaluator.restore(undo)
        return found

    def timeline(self, changes: Tiles) -> Timeline:
        return _simulated(self.space, replace(self.plan, tiles={**self.plan.tiles, **changes}))


class Simulated:
    """A plan that is lowered and simulated with each of the tiles, with all else as the plan has it."""

    scale = 1.0
    most = 60

    def __init__(self, space: PlanSpace, plan: Plan) -> None:
        self.space, self.plan = space, plan
        self.simulated: str | None = unsupported(plan)
        self.base = self.read({})

    def read(self, changes: Tiles) -> Reading:
        timeline = self.timeline(changes)
        tasks, devices = timeline.tasks, timeline.program.plan.devices
        load = np.zeros(tasks.resources, np.int64)
        apart = tasks.source != tasks.device  # messages
        for held in (tasks.first_resource, tasks.second_resource):
            counted = (held >= 0) & ((held < devices) | apart)
            np.add.at(load, held[counted], tasks.duration[counted])
        load //= timeline.program.plan.steps
        overlapping = is_asynchronous(self.plan)
        time = round(1e9 * timeline.step_seconds) if overlapping else int(timeline.end.max())
        link = int(load[devices:].max(initial=0))
        return Reading(time, int(load[:devices].max()), link, np.array(peak_bytes(timeline)))

    def timeline(self, changes: Tiles) -> Timeline:
        plan = replace(self.plan, tiles={**self.plan.tiles, **changes})
        if plan.order and changes:  # the slices are others: their sums have an order of their own
            space = self.space
            plan = with_slice_order(space.graph, plan, space.cluster, space.settings.profile)
        return _simulated(self.space, plan)


def _simulated(space: PlanSpace, plan: Plan) -> Timeline:
    """One step on its own; several, where they overlap."""
    profile = space.settings.profile
    if is_asynchronous(plan):
        return simulate_steps(space.graph, plan, space.cluster, profile)
    return simulate(lower(space.graph, plan), space.cluster, profile)
