"""OptCNN (Jia et al., arXiv 1802.04924): the configurations of all layers with the least sum of costs.

Differs from the paper: the search is exact for any graph (elimination.py), nodes are groups of operators
with any number of devices (tables.py), and summed letters may be split, too. `optcnn` judges by simulation:
how much of the all-reduces the backward hides depends on the plan, so it searches under several assumptions
and takes what simulates fastest. `optcnn_paper` counts as the paper does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.evaluation.evaluator import Evaluator
from raddle.graph.graph import Graph
from raddle.plan.plan import Plan
from raddle.program.lower import lower
from raddle.searches.configurations import Configuration, tiles
from raddle.searches.groups import Group
from raddle.searches.optcnn.elimination import Solution, solve
from raddle.searches.optcnn.tables import Tables, tables
from raddle.searches.placing import Tiles, all_devices, copies, place_standing
from raddle.simulation.timeline import simulate

OVERLAPS = (1.0, 0.5, 0.2, 0.0)  # shares of the all-reduces that are taken to be exposed
MOST_EVALUATED = 256  # devices, beyond which a plan is lowered and simulated once


def optcnn(graph: Graph, cluster: Cluster) -> Tiles:
    """The tiles of the plan that simulates fastest of those that are best under some overlap."""
    found = tables(graph, cluster)
    best: tuple[float, Tiles] | None = None
    refusal: InputError | None = None
    seen = set()
    for overlap in OVERLAPS:
        chosen, solution = choose(found.overlapped(overlap))
        if solution.choice in seen:
            continue
        seen.add(solution.choice)
        plan = plan_tiles(graph, cluster, found.groups, chosen)
        try:
            seconds = _seconds(graph, cluster, plan)
        except InputError as error:
            refusal = error
            continue
        if best is None or seconds < best[0]:
            best = seconds, plan
    if best is None:
        assert refusal is not None
        raise refusal
    return best[1]


def optcnn_paper(graph: Graph, cluster: Cluster, **options: Any) -> tuple[Tiles, Solution]:
    """By the paper's costs: a server for each layer's parameters, no overlap; options are `tables`'."""
    found = tables(graph, cluster, paper=True, **options)
    chosen, solution = choose(found)
    return plan_tiles(graph, cluster, found.groups, chosen), solution


def choose(tables: Tables) -> tuple[list[Configuration], Solution]:
    """The configurations, by group, with the least sum of costs."""
    solution = solve(tables.nodes, tables.edges)
    chosen = [own[x] for own, x in zip(tables.configurations, solution.choice, strict=True)]
    return chosen, solution


def plan_tiles(
    graph: Graph, cluster: Cluster, groups: Sequence[Group], configurations: Sequence[Configuration]
) -> Tiles:
    """The tiles of all operators, given a configuration for each group."""
    found: Tiles = {}
    for group, configuration in zip(groups, configurations, strict=True):
        found.update(tiles(group, configuration))
    devices = all_devices(cluster)
    place_standing(graph, found, lambda op: copies(op, devices))
    return found


def _seconds(graph: Graph, cluster: Cluster, plan: Tiles) -> float:
    """Of one simulated step; InputError where no plan can be so."""
    if len(cluster.devices) > MOST_EVALUATED:
        program = lower(graph, Plan(plan, len(cluster.devices), bn="local"))
        return simulate(program, cluster).total_seconds
    nanoseconds = Evaluator(graph, cluster, plan).time()
    assert nanoseconds is not None, "a step without a limit ends"
    return nanoseconds / 1e9
