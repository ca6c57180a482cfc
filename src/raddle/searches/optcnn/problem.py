"""The problem that OptCNN's costs make: nodes with costs, and edges with costs of two nodes together."""

# i, j: nodes, e: an edge, x: a configuration

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

MAX_PASSES = 50


class Edge(NamedTuple):
    """What two nodes cost together. Edges that share one array share the work on it, too."""

    source: int
    target: int
    cost: np.ndarray  # by configuration of the source and of the target, float32


Nodes: TypeAlias = Sequence[np.ndarray]
Edges: TypeAlias = Sequence[Edge]
Incidence: TypeAlias = list[
    list[tuple[int, int, int]]
]  # by node: edge, which end of it, other node


def cost_of(nodes: Nodes, edges: Edges, choice: Sequence[int]) -> float:
    costs = [float(node[x]) for node, x in zip(nodes, choice, strict=True)]
    return math.fsum([*costs, *(float(t[choice[i], choice[j]]) for i, j, t in edges)])


def improve_locally(nodes: Nodes, edges: Edges, choice: Sequence[int]) -> tuple[int, ...]:
    """The choice, made better until no node can gain by another configuration of its own."""
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
    incident: Incidence = [[] for _ in nodes]
    for e, (i, j, _) in enumerate(edges):
        incident[i].append((e, 0, j))
        incident[j].append((e, 1, i))
    return incident
