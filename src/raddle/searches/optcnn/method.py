"""OptCNN (Jia et al., arXiv 1802.04924): finds the configurations of all layers with the least total cost.

Differs from the paper: the search is exact for any graph (elimination.py); a node is a group of operators
on any number of devices (tables.py); summed dimensions may be split, too. How much of the all-reduces is
hidden behind the backward depends on the plan. So the method `optcnn` (optima.py) solves the problem for
several assumed exposed (not hidden) shares, and takes the plan that simulates fastest. `optcnn_paper` uses
the paper's costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.configurations import Configuration, tiles
from raddle.searches.grids import Tiles, all_devices, copies, place_batch_independent
from raddle.searches.groups import Group
from raddle.searches.optcnn.elimination import Solution, solve
from raddle.searches.optcnn.tables import Tables, build_tables

# Assumed shares of the all-reduces' time that are exposed, i.e. not hidden behind the backward.
EXPOSED_SHARES = (1.0, 0.5, 0.2, 0.0)


def optcnn_paper(graph: Graph, cluster: Cluster, **options: Any) -> tuple[Tiles, Solution]:
    """The optimum for the paper's costs: a parameter server for each layer, and no overlap.

    options: those of build_tables.
    """
    costs = build_tables(graph, cluster, paper=True, **options)
    chosen, solution = choose_configurations(costs)
    return plan_tiles(graph, cluster, costs.groups, chosen), solution


def choose_configurations(tables: Tables) -> tuple[list[Configuration], Solution]:
    """The configuration of each group with the least total cost."""
    solution = solve(tables.nodes, tables.edges)
    chosen = [
        group_configurations[x]
        for group_configurations, x in zip(tables.configurations, solution.choice, strict=True)
    ]
    return chosen, solution


def plan_tiles(
    graph: Graph, cluster: Cluster, groups: Sequence[Group], configurations: Sequence[Configuration]
) -> Tiles:
    """The tiles of all operators, given the configuration of each group."""
    all_tiles: Tiles = {}
    for group, configuration in zip(groups, configurations, strict=True):
        all_tiles.update(tiles(group, configuration))
    devices = all_devices(cluster)
    # Operators that read only parameters, buffers and constants: on the devices that read their results.
    place_batch_independent(graph, all_tiles, lambda op: copies(op, devices))
    return all_tiles
