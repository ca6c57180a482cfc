"""Decides the order in which `p3:collective` all-reduces the slices of gradients, by a simulation.

P3 (Priority-based Parameter Propagation, arXiv 1905.03960) gives priority to the slices that the next
forward needs first. Differs from the paper: the slices are all-reduced, and all ranks must start
collectives in the same order. So the order is fixed here once, in the plan, and not at run time by which
slice is ready.

A bundle is the slices that are synchronised together, here in one all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.program import Reduce
from raddle.simulation.timeline import simulate


def with_slice_order(
    graph: Graph,
    plan: Plan,
    cluster: Cluster,
    profile: Profile | None = None,
    look: Callable[[], None] = lambda: None,
) -> Plan:
    """Returns the plan with `order`: the numbers of the bundles as a simulation starts them.

    One step is simulated, without messages of the step before. That is enough: the next forward waits for
    all slices, so that no all-reduce lasts into the next backward. look: see predict.simulate_steps.
    """
    program = lower(graph, replace(plan, order=(), steps=1), look=look)
    # (parameters, slices) of a bundle -> its number
    number = {(b.parameters, b.slices): n for n, b in enumerate(program.bundles)}
    # overtaking: all-reduces start by priority, not in the order of the program
    timeline = simulate(program, cluster, profile, overtaking=True, look=look)
    first_start = np.full(len(program.instructions), np.iinfo(np.int64).max)
    tasks = timeline.tasks
    # Tasks without a link start when they are ready: they say nothing about the order.
    uses_link = (tasks.first_resource >= 0) | (tasks.second_resource >= 0)
    np.minimum.at(first_start, tasks.instruction[uses_link], timeline.start[uses_link])
    # (nanoseconds of the start, position in the program, bundle number) of each all-reduce. regions: by
    # parameter, its slices in the bundle.
    slice_starts = [
        (
            int(first_start[position]),
            position,
            number[reduce.parameters, tuple(s for slices in reduce.regions for s in slices)],
        )
        for position, reduce in enumerate(program.instructions)
        if isinstance(reduce, Reduce)
    ]
    reduced = [n for *_, n in sorted(slice_starts)]
    not_reduced = sorted(set(number.values()) - set(reduced))  # bundles on a single device
    return replace(plan, order=(*reduced, *not_reduced))
