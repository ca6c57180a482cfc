"""OptCNN (Jia et al., arXiv 1802.04924): finds the configurations of all layers with the least total cost.

Differs from the paper: the search is exact for any graph (elimination.py); a node is a group of operators
on any number of devices (tables.py); summed dimensions may be split, too. How much of the all-reduces is
hidden behind the backward depends on the plan. The exposed share is the fraction of their time that is not
hidden. The method `optcnn` (optima.py) assumes several exposed shares, solves the problem for each, and
takes the plan that simulates fastest. `optcnn_paper` uses the paper's costs.
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
from raddle.searches.stopwatch import Clock

# The exposed shares that `optcnn` assumes.
EXPOSED_SHARES = (1.0, 0.5, 0.2, 0.0)


def optcnn_paper(graph: Graph, cluster: Cluster, **options: Any) -> tuple[Tiles, Solution]:
    """Returns the optimal tiles for the paper's costs: a parameter server for each layer, and no overlap.

    options: the options of build_tables.
    """
    costs = build_tables(graph, cluster, paper=True, **options)
    chosen, solution = choose_configurations(costs)
    return plan_tiles(graph, cluster, costs.groups, chosen), solution


def choose_configurations(
    tables: Tables, clock: Clock | None = None
) -> tuple[list[Configuration], Solution]:
    """Returns the configurations of all groups with the least total cost, and the solution.

    clock: when it expires, the best choice so far is returned; None: there is no limit.
    """
    solution = solve(tables.nodes, tables.edges, clock=clock)
    chosen = [
        group_configurations[x]
        for group_configurations, x in zip(tables.configurations, solution.choice, strict=True)
    ]
    return chosen, solution


def plan_tiles(
    graph: Graph, cluster: Cluster, groups: Sequence[Group], configurations: Sequence[Configuration]
) -> Tiles:
    """Returns the tiles of all operators, given the configuration of each group."""
    all_tiles: Tiles = {}
    for group, configuration in zip(groups, configurations, strict=True):
        all_tiles.update(tiles(group, configuration))
    devices = all_devices(cluster)
    # Operators that read only parameters, buffers and constants: on the devices that read their results.
    place_batch_independent(graph, all_tiles, lambda op: copies(op, devices))
    return all_tiles
