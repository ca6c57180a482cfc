"""Simulates steps of ranks that share CPU cores: operators take longer while too many ranks compute.

The simulator gives every device a core of its own. In the lab (hosts emulated on this machine) four ranks
may share two cores. Then a plan whose ranks all compute at once takes twice as long, but a plan whose ranks
wait for each other does not.
*Crowding* is the factor by which operators are slower because more ranks compute than there are cores.
"""

# k: devices that compute at a moment

from __future__ import annotations

import numpy as np

from raddle.api.clusters import Cluster
from raddle.api.costs import Profile
from raddle.api.models import Graph
from raddle.api.plans import Plan
from raddle.api.simulating import Timeline, simulate_steps

Array = np.ndarray


def step_seconds(graph: Graph, plan: Plan, cluster: Cluster, profile: Profile, cores: int) -> float:
    """Returns the seconds of a step. Simulates with a core for each rank, then again with slower operators.

    In the second simulation operators take as many times longer as the crowding of the first one says.
    cores: their number in this machine.
    """
    alone = simulate_steps(graph, plan, cluster, profile)
    slower = _timeline_crowding(alone, cores)
    if slower == 1.0:
        return alone.step_seconds
    crowded = Profile({name: slower * seconds for name, seconds in profile.seconds.items()})
    return simulate_steps(graph, plan, cluster, crowded).step_seconds


def _timeline_crowding(timeline: Timeline, cores: int) -> float:
    """Returns the crowding of a simulated step, from the tasks that occupy a device."""
    first = timeline.tasks.first_resource  # by task; -1: none
    # resources are numbered: the devices first, then the links
    computes = (first >= 0) & (first < timeline.program.plan.devices)
    return crowding(timeline.start[computes], timeline.end[computes], cores)


def crowding(start: Array, end: Array, cores: int) -> float:
    """Returns the mean slowdown max(1, k / cores), weighted by the compute time spent at each k.

    start, end: times of the tasks that compute, on all devices.
    """
    times = np.concatenate([start, end])
    change = np.concatenate([np.ones(len(start), np.int64), -np.ones(len(end), np.int64)])
    order = np.argsort(times, kind="stable")
    k = np.cumsum(change[order])[:-1]
    spent = k * np.diff(times[order])  # compute time of all devices in the interval
    total = float(spent.sum())
    return float((spent * np.maximum(1.0, k / cores)).sum()) / total if total else 1.0
