"""The problem that OptCNN's costs make: nodes with costs, and edges with costs of two nodes together."""

# i, j: nodes, e: an edge, x: a configuration

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

PASSES = 50


class Edge(NamedTuple):
    """What two nodes cost together. Edges that share one array share the work on it, too."""

    source: int
    target: int
    cost: np.ndarray  # by configuration of the source and of the target, float32


Nodes: TypeAlias = Sequence[np.ndarray]
Edges: TypeAlias = Sequence[Edge]
Near: TypeAlias = list[list[tuple[int, int, int]]]  # by node: edge, which end of it, other node


def cost_of(nodes: Nodes, edges: Edges, choice: Sequence[int]) -> float:
    costs = [float(node[x]) for node, x in zip(nodes, choice, strict=True)]
    return math.fsum([*costs, *(float(t[choice[i], choice[j]]) for i, j, t in edges)])


def settled(nodes: Nodes, edges: Edges, choice: Sequence[int]) -> tuple[int, ...]:
    """The choice, made better until no node can gain by another configuration of its own."""
    chosen, near = [int(x) for x in choice], near_of(nodes, edges)
    for _ in range(PASSES):
        before = tuple(chosen)
        for i, node in enumerate(nodes):
            costs = node.astype(np.float64)
            for e, end, j in near[i]:
                costs += edges[e].cost[:, chosen[j]] if end == 0 else edges[e].cost[chosen[j]]
            x = int(costs.argmin())
            if costs[x] < costs[chosen[i]]:
                chosen[i] = x
        if tuple(chosen) == before:
            break
    return tuple(chosen)


def near_of(nodes: Nodes, edges: Edges) -> Near:
    near: Near = [[] for _ in nodes]
    for e, (i, j, _) in enumerate(edges):
        near[i].append((e, 0, j))
        near[j].append((e, 1, i))
    return near
