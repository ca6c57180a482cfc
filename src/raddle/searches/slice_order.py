"""The order in which sums of slices leave, from a simulation in which the most urgent goes first.

P3 (arXiv 1905.03960): of what waits for the network, what the next forward uses first travels first.
Differs from the paper: collectives must leave in the same order everywhere, so who overtakes whom is
decided here, once, and not by who is ready when.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.parameter_slices import numbered_slices
from raddle.program.program import Reduce
from raddle.simulation.timeline import simulate


def with_slice_order(
    graph: Graph, plan: Plan, cluster: Cluster, profile: Profile | None = None
) -> Plan:
    """The plan with an order of its sums; of one step, at whose beginning nothing is under way.

    Every parameter is used in the forward, which waits for it: no sum lasts until the next backward.
    """
    program = lower(graph, replace(plan, order=(), steps=1))
    number = {slice_: n for n, slice_ in enumerate(numbered_slices(program.slices))}
    timeline = simulate(program, cluster, profile, overtaking=True)
    first_start = np.full(len(program.instructions), np.iinfo(np.int64).max)
    tasks = timeline.tasks
    uses_link = (tasks.first_resource >= 0) | (
        tasks.second_resource >= 0
    )  # what holds no link begins when it is ready
    np.minimum.at(first_start, tasks.instruction[uses_link], timeline.start[uses_link])
    sums = [
        (int(first_start[at]), at, number[i.parameters[0], i.regions[0][0]])
        for at, i in enumerate(program.instructions)
        if isinstance(i, Reduce)
    ]
    reduced = [n for *_, n in sorted(sums)]
    not_reduced = sorted(set(number.values()) - set(reduced))  # slices that one device alone holds
    return replace(plan, order=(*reduced, *not_reduced))
