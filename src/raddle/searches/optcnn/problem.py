"""The optimisation problem of OptCNN: choose one configuration for each node, with the least total cost.

A node stands for a group of operators and has a cost for each of its configurations. An edge stands for the
transfers between two groups and has a cost for each pair of their configurations. A choice is a tuple with
the index of the chosen configuration of each node.
"""

# i, j: nodes, e: an edge, x: a configuration

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

MAX_PASSES = 50  # passes of improve_locally over all nodes


class Edge(NamedTuple):
    """The costs of two nodes together. Edges with equal costs may share one array, to share work on it."""

    source: int
    target: int
    cost: np.ndarray  # [configuration of source, configuration of target], float32


Nodes: TypeAlias = Sequence[np.ndarray]  # for each node, the costs of its configurations
Edges: TypeAlias = Sequence[Edge]
# For each node, its edges: (index of the edge, 0 if the node is its source else 1, the other node).
Incidence: TypeAlias = list[list[tuple[int, int, int]]]


def cost_of(nodes: Nodes, edges: Edges, choice: Sequence[int]) -> float:
    """Returns the total cost of a choice."""
    costs = [float(node[x]) for node, x in zip(nodes, choice, strict=True)]
    return math.fsum([*costs, *(float(t[choice[i], choice[j]]) for i, j, t in edges)])


def improve_locally(nodes: Nodes, edges: Edges, choice: Sequence[int]) -> tuple[int, ...]:
    """Returns a choice, improved node by node until no change of a single node lowers the total cost."""
    chosen, incident = [int(x) for x in choice], incident_edges(nodes, edges)
    for _ in range(MAX_PASSES):
        before = tuple(chosen)
        for i, node in enumerate(nodes):
            costs = node.astype(np.float64)
            for e, end, j in incident[i]:
                costs += edges[e].cost[:, chosen[j]] if end == 0 else edges[e].cost[chosen[j]]
            x = int(costs.argmin())
            if costs[x] < costs[chosen[i]]:
                chosen[i] = x
        if tuple(chosen) == before:
            break
    return tuple(chosen)


def incident_edges(nodes: Nodes, edges: Edges) -> Incidence:
    """Returns the edges of each node."""
    incident: Incidence = [[] for _ in nodes]
    for e, (i, j, _) in enumerate(edges):
        incident[i].append((e, 0, j))
        incident[j].append((e, 1, i))
    return incident
