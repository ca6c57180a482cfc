"""Simulates a single step of a plan, for plans and clusters that the fast evaluator does not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.simulation.timeline import simulate


class StepTime(NamedTuple):
    """The time of a single step, without the steps before and after it."""

    time: int  # nanoseconds from start to end
    load: int  # busy nanoseconds of the busiest resource: in the steady state no step is shorter


def simulate_single_step(
    graph: Graph,
    plan: Plan,
    cluster: Cluster,
    profile: Profile | None = None,
    look: Callable[[], None] = lambda: None,
) -> StepTime:
    """Returns the time and the load of a single step of a plan, by the full simulation.

    look: see predict.simulate_steps.
    """
    timeline = simulate(lower(graph, plan, look=look), cluster, profile, look=look)
    tasks = timeline.tasks
    load = np.zeros(tasks.resources, np.int64)  # by resource: a device or a link
    # A task occupies up to two resources; -1: none.
    for resource in (tasks.first_resource, tasks.second_resource):
        np.add.at(load, resource[resource >= 0], tasks.duration[resource >= 0])
    return StepTime(int(timeline.end.max()), int(load.max()))
