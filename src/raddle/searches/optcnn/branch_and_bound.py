"""Branch and bound for OptCNN's problem, used if the tables of elimination would be too large.

A node is a group of operators; its table has the cost of each of its configurations. An edge is a pair of
nodes; its table has a cost for each pair of configurations. A choice is one configuration for each node;
a choice with the least sum of costs is sought (problem.py). Elimination (elimination.py) solves this
exactly, with tables over several nodes. A subproblem restricts the configurations that each node may still
have.

Bound: the sum of the minima of all cost tables is a lower bound. Sweeps over the nodes, forwards and
backwards, move costs between edges and nodes to raise this bound, while every choice keeps its total cost
(Kolmogorov, A new look at reweighted message passing: SRMP). A configuration is dropped if the bound plus
its cost above its node's minimum reaches the best known cost.

Branch: a subproblem is solved by elimination if its tables are small enough. Otherwise it is divided: one
child for each configuration of some node. The most promising child comes next; after a subproblem is solved
or dropped, the open one with the lowest bound comes next. So at any time the best choice so far and a lower
bound are known.

Differs from Kolmogorov's paper: costs move only over edges between two nodes, and a node collects the costs
of all its edges.
"""

# i, j: nodes, e: an edge, x: a configuration, end: 0 or 1 (the node is the edge's source or target),
# k: the allowed configurations of a node, g: which of them are kept; incident[i] lists node i's edges, each
# as (e, end, the other node). moved[e][end]: the costs that were moved from edge e to the node at this end.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from raddle.searches.optcnn.problem import (
    Edges,
    Incidence,
    Nodes,
    cost_of,
    improve_locally,
    incident_edges,
)
from raddle.searches.settings import OnProgress

SWEEPS = 40  # the most sweeps for one subproblem
GAIN = 0.02  # stop when a sweep closes less than this fraction of the gap from the bound to the best cost
ROUNDING = 1e-9  # relative to the best cost: bounds this close to it count as equal


class BranchResult(NamedTuple):
    """The best choice that was found."""

    choice: tuple[int, ...]
    bound: float  # no choice costs less
    certified: bool  # the choice is optimal
    branches: int  # number of subproblems that were tightened


class Subproblem(NamedTuple):
    """The problem with fewer configurations for each node. Its fields are in the order of the heap."""

    priority: (
        int  # 0: the most promising child, which comes next to find good choices early; else 1
    )
    bound: float  # no choice in it costs less
    number: int  # unique, to break ties
    allowed: list[np.ndarray]  # for each node, its remaining configurations
    # For each edge, the costs that were moved from it to its source and to its target.
    moved: list[list[np.ndarray]]


def branch_and_bound(
    nodes: Nodes,
    edges: Edges,
    *,
    solve_by_elimination: Callable[[Nodes, Edges], tuple[tuple[int, ...], bool] | None],
    out_of_time: Callable[[], bool],
    on_progress: OnProgress,
) -> BranchResult:
    """Returns the optimal choice or, when time runs out, the best so far with a lower bound.

    solve_by_elimination: returns a choice and whether it is optimal; None if its tables would be too large.
    """
    # forbidden: a choice that costs this much or more has an infinite cost
    nodes, edges, forbidden = _without_infinities(nodes, edges)
    incident = incident_edges(nodes, edges)
    best = improve_locally(nodes, edges, [int(node.argmin()) for node in nodes])
    cost = cost_of(nodes, edges, best)
    moved = [[np.zeros(len(nodes[i])), np.zeros(len(nodes[j]))] for i, j, _ in edges]
    allowed = [np.arange(len(node)) for node in nodes]
    heap = [Subproblem(1, _bound(nodes, edges, moved), 0, allowed, moved)]
    numbers, branches = count(1), 0

    def cannot_improve(candidate: Subproblem) -> bool:
        return candidate.bound >= cost - ROUNDING * abs(cost)

    while heap and not out_of_time():
        subproblem = heappop(heap)
        if cannot_improve(subproblem):
            continue
        branches += 1
        on_progress({"step": "branch", "cost": cost, "bound": subproblem.bound, "open": len(heap)})
        subproblem = _tighten(nodes, edges, incident, subproblem, cost, out_of_time)
        if cannot_improve(subproblem):
            continue
        restricted_nodes, restricted_edges = _restrict(nodes, edges, subproblem.allowed)
        solved = solve_by_elimination(restricted_nodes, restricted_edges)
        # complete: the choice is optimal for the subproblem
        choice, complete = solved or (
            _greedy_choice(restricted_nodes, restricted_edges, incident, subproblem.moved),
            False,
        )
        # From positions among the allowed configurations to numbers of configurations.
        choice = improve_locally(
            nodes, edges, [k[x] for k, x in zip(subproblem.allowed, choice, strict=True)]
        )
        if (new_cost := cost_of(nodes, edges, choice)) < cost:
            best, cost = choice, new_cost
        if solved is None:
            for child in _branch(restricted_nodes, restricted_edges, incident, subproblem, numbers):
                heappush(heap, child)
        elif not complete:
            heappush(heap, subproblem)
    bound = min(
        (remaining.bound for remaining in heap if not cannot_improve(remaining)), default=cost
    )
    return BranchResult(best, math.inf if bound >= forbidden else bound, bound == cost, branches)


# -- bounds --------------------------------------------------------------------------------------


def _without_infinities(nodes: Nodes, edges: Edges) -> tuple[Nodes, Edges, float]:
    """Replaces infinite costs by a finite cost, larger than the cost of any choice without infinite costs.

    Returns nodes, edges, and a total cost: a choice that costs as much or more has an infinite cost.
    """
    tables = [*nodes, *(edge.cost for edge in edges)]
    finite = [table[np.isfinite(table)] for table in tables]
    if all(costs.size == table.size for costs, table in zip(finite, tables, strict=True)):
        return nodes, edges, math.inf
    lows = [float(costs.min()) if costs.size else 0.0 for costs in finite]
    span = 1 + 2 * sum(float(costs.max()) - costs.min() for costs in finite if costs.size)
    capped = [
        np.minimum(t, low + span, dtype=np.float64) for t, low in zip(tables, lows, strict=True)
    ]
    changed = [edge._replace(cost=t) for edge, t in zip(edges, capped[len(nodes) :], strict=True)]
    return capped[: len(nodes)], changed, sum(lows) + span


def _restrict(nodes: Nodes, edges: Edges, allowed: Sequence[np.ndarray]) -> tuple[Nodes, Edges]:
    """Returns the same nodes and edges, with the costs of the allowed configurations only."""
    restricted_nodes = [node[k] for node, k in zip(nodes, allowed, strict=True)]
    return restricted_nodes, [
        e._replace(cost=e.cost[np.ix_(allowed[e.source], allowed[e.target])]) for e in edges
    ]


def _bound(nodes: Nodes, edges: Edges, moved: Sequence[Sequence[np.ndarray]]) -> float:
    """Returns the lower bound: the sum of the minima of all tables, with the moved costs at the nodes."""
    costs = [node.astype(np.float64) for node in nodes]
    for (i, j, _), (to_i, to_j) in zip(edges, moved, strict=True):
        costs[i] += to_i
        costs[j] += to_j
    # t: the edge's table, m: the costs that were moved to its source and to its target
    remaining = (t - m[0][:, None] - m[1] for (_, _, t), m in zip(edges, moved, strict=True))
    return math.fsum(float(t.min()) for t in (*costs, *remaining))


def _collect_costs(
    nodes: Nodes, edges: Edges, incident: Incidence, moved: list[list[np.ndarray]], i: int
) -> np.ndarray:
    """Moves to node i, for each configuration, the least cost of each of its edges.

    Returns the node's costs after that, and writes the moved costs into `moved`.
    """
    costs = nodes[i].astype(np.float64)
    for e, end, _ in incident[i]:
        away = moved[e][1 - end]  # costs that were moved to the edge's other node
        moved[e][end] = (edges[e].cost - (away if end == 0 else away[:, None])).min(axis=1 - end)
        costs += moved[e][end]
    return costs


def _tighten(
    nodes: Nodes,
    edges: Edges,
    incident: Incidence,
    subproblem: Subproblem,
    cost: float,
    out_of_time: Callable[[], bool],
) -> Subproblem:
    """Returns the subproblem with a higher bound and fewer configurations.

    cost: the best known cost. The bound becomes `cost` if the subproblem has no better choice.
    """
    for _ in range(SWEEPS):
        restricted_nodes, restricted_edges = _restrict(nodes, edges, subproblem.allowed)
        moved = [list(ends) for ends in subproblem.moved]
        gap = cost - ROUNDING * abs(cost) - subproblem.bound
        # For each node, the configurations that a choice better than the best known one may have.
        kept = [np.ones(len(node), bool) for node in restricted_nodes]
        for backwards in (False, True):
            for i in sorted(range(len(restricted_nodes)), reverse=backwards):
                costs = _collect_costs(restricted_nodes, restricted_edges, incident, moved, i)
                kept[i] &= costs - costs.min() < gap
                # edges to nodes that this sweep visits later
                ahead = [(e, end) for e, end, j in incident[i] if (j < i) == backwards]
                # As in SRMP, each edge ahead takes an equal share of the node's costs.
                share = 1 / max(1, len(ahead), len(incident[i]) - len(ahead))
                for e, end in ahead:
                    moved[e][end] = moved[e][end] - share * costs
        bound = max(subproblem.bound, _bound(restricted_nodes, restricted_edges, moved))
        if bound - subproblem.bound >= gap or not all(g.any() for g in kept):
            return subproblem._replace(bound=cost)
        gained = bound - subproblem.bound
        moved = [[a[kept[i]], b[kept[j]]] for (i, j, _), (a, b) in zip(edges, moved, strict=True)]
        allowed = [k[g] for k, g in zip(subproblem.allowed, kept, strict=True)]
        subproblem = subproblem._replace(bound=bound, allowed=allowed, moved=moved)
        if gained < GAIN * gap or out_of_time():
            break
    return subproblem


def _greedy_choice(
    nodes: Nodes, edges: Edges, incident: Incidence, moved: list[list[np.ndarray]]
) -> tuple[int, ...]:
    """Returns a choice made node by node: the best configuration, given those of the nodes before it.

    For edges to later nodes, the moved costs estimate what the edge will cost.
    """
    choice: list[int] = []
    for i, node in enumerate(nodes):
        costs = node.astype(np.float64)
        for e, end, j in incident[i]:
            table = edges[e].cost if end == 0 else edges[e].cost.T
            # the real cost for edges to earlier nodes, the moved cost for the others
            costs += table[:, choice[j]] if j < i else moved[e][end]
        choice.append(int(costs.argmin()))
    return tuple(choice)


def _branch(
    nodes: Nodes, edges: Edges, incident: Incidence, subproblem: Subproblem, numbers: count[int]
) -> list[Subproblem]:
    """Returns the children of a subproblem, one for each configuration of a node.

    The node is the one with the most neighbours that still have several configurations; of equal nodes, the
    one with the fewest configurations.
    """

    def branching_key(i: int) -> tuple[int, int]:
        return sum(len(nodes[j]) > 1 for _, _, j in incident[i]), -len(nodes[i])

    i = max((i for i, node in enumerate(nodes) if len(node) > 1), key=branching_key)
    moved = list(map(list, subproblem.moved))
    costs = _collect_costs(nodes, edges, incident, moved, i)
    children = []
    for x, extra in enumerate(costs - costs.min()):
        priority = int(x != costs.argmin())
        allowed = [
            *subproblem.allowed[:i],
            subproblem.allowed[i][x : x + 1],
            *subproblem.allowed[i + 1 :],
        ]
        child_moved = [list(ends) for ends in moved]
        for e, end, _ in incident[i]:
            child_moved[e][end] = child_moved[e][end][x : x + 1]
        children.append(
            Subproblem(
                priority, subproblem.bound + float(extra), next(numbers), allowed, child_moved
            )
        )
    return children
