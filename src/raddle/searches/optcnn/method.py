"""OptCNN (Jia et al., arXiv 1802.04924): the configurations of all layers with the least sum of costs.

Differs from the paper: the search is exact for any graph (elimination.py), nodes are groups of operators
with any number of devices (tables.py), and summed letters may be split, too. How much of the all-reduces
the backward hides depends on the plan, so the search (optima.py) solves under several assumptions and
takes what simulates fastest. `optcnn_paper` counts as the paper does.
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

EXPOSED_SHARES = (1.0, 0.5, 0.2, 0.0)  # shares of the all-reduces that are taken to be exposed


def optcnn_paper(graph: Graph, cluster: Cluster, **options: Any) -> tuple[Tiles, Solution]:
    """By the paper's costs: a server for each layer's parameters, no overlap; options are `tables`'."""
    costs = build_tables(graph, cluster, paper=True, **options)
    chosen, solution = choose_configurations(costs)
    return plan_tiles(graph, cluster, costs.groups, chosen), solution


def choose_configurations(tables: Tables) -> tuple[list[Configuration], Solution]:
    """The configurations, by group, with the least sum of costs."""
    solution = solve(tables.nodes, tables.edges)
    chosen = [
        group_configurations[x]
        for group_configurations, x in zip(tables.configurations, solution.choice, strict=True)
    ]
    return chosen, solution


def plan_tiles(
    graph: Graph, cluster: Cluster, groups: Sequence[Group], configurations: Sequence[Configuration]
) -> Tiles:
    """The tiles of all operators, given a configuration for each group."""
    all_tiles: Tiles = {}
    for group, configuration in zip(groups, configurations, strict=True):
        all_tiles.update(tiles(group, configuration))
    devices = all_devices(cluster)
    place_batch_independent(graph, all_tiles, lambda op: copies(op, devices))
    return all_tiles
