"""Branch and bound, where the tables of elimination would be too large.

A part of the problem says what configurations each node may still take. Its bound is the sum of the minima
of all tables, after costs were moved between edges and nodes, along the nodes and back, which changes no
choice's sum (Kolmogorov, A new look at reweighted message passing: SRMP). What a configuration then
costs above its node's minimum adds to the bound: where that reaches the best known cost, it is dropped. A
part is solved if elimination can, or else divided by the configurations of a node; next is the best of
those, and where a part was solved or dropped, the one with the lowest bound of all. So the best choice and
the lowest bound are known at any time.

Differs from the paper: costs are moved over edges alone, and all the edges of a node are collected.
"""

# i, j: nodes, e: an edge, x: a configuration

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from raddle.searches.optcnn.problem import Edges, Near, Nodes, cost_of, near_of, settled
from raddle.searches.settings import OnProgress

SWEEPS = 40  # at most, over a part
GAIN = 0.02  # of the gap between bound and best cost: a sweep that closes less was the last
ROUNDING = 1e-9  # of the best cost: bounds that close to it are taken for equal


class Found(NamedTuple):
    choice: tuple[int, ...]
    bound: float
    certified: bool
    branches: int


class Part(NamedTuple):
    turn: int  # 0: the next; it is the best part of the last one, to come to good choices early
    bound: float
    number: int  # breaks ties
    keep: list[np.ndarray]  # by node, its configurations
    moved: list[list[np.ndarray]]  # by edge, what was moved from it to its source and to its target


def minimum(
    nodes: Nodes,
    edges: Edges,
    *,
    narrow: Callable[[Nodes, Edges], tuple[tuple[int, ...], bool] | None],
    late: Callable[[], bool],
    heard: OnProgress,
) -> Found:
    """The best choice, if there is time. `narrow` solves a part and says if to the end; none: too wide."""
    nodes, edges, forbidden = _finite(nodes, edges)
    near = near_of(nodes, edges)
    best = settled(nodes, edges, [int(node.argmin()) for node in nodes])
    cost = cost_of(nodes, edges, best)
    moved = [[np.zeros(len(nodes[i])), np.zeros(len(nodes[j]))] for i, j, _ in edges]
    keep = [np.arange(len(node)) for node in nodes]
    heap = [Part(1, _bound(nodes, edges, moved), 0, keep, moved)]
    numbers, branches = count(1), 0

    def closed(part: Part) -> bool:
        return part.bound >= cost - ROUNDING * abs(cost)

    while heap and not late():
        part = heappop(heap)
        if closed(part):
            continue
        branches += 1
        heard({"step": "branch", "cost": cost, "bound": part.bound, "open": len(heap)})
        part = _tightened(nodes, edges, near, part, cost, late)
        if closed(part):
            continue
        few, some = _restricted(nodes, edges, part.keep)
        solved = narrow(few, some)
        choice, done = solved or (_rounded(few, some, near, part.moved), False)
        choice = settled(nodes, edges, [k[x] for k, x in zip(part.keep, choice, strict=True)])
        if (new := cost_of(nodes, edges, choice)) < cost:
            best, cost = choice, new
        if solved is None:
            for child in _divided(few, some, near, part, numbers):
                heappush(heap, child)
        elif not done:
            heappush(heap, part)
    bound = min((part.bound for part in heap if not closed(part)), default=cost)
    return Found(best, math.inf if bound >= forbidden else bound, bound == cost, branches)


# -- bounds --------------------------------------------------------------------------------------


def _finite(nodes: Nodes, edges: Edges) -> tuple[Nodes, Edges, float]:
    """Infinite costs become so large that a choice with one costs more than all without, and how much."""
    tables = [*nodes, *(edge.cost for edge in edges)]
    finite = [table[np.isfinite(table)] for table in tables]
    if all(some.size == table.size for some, table in zip(finite, tables, strict=True)):
        return nodes, edges, math.inf
    lows = [float(some.min()) if some.size else 0.0 for some in finite]
    span = 1 + 2 * sum(float(some.max()) - some.min() for some in finite if some.size)
    cut = [np.minimum(t, low + span, dtype=np.float64) for t, low in zip(tables, lows, strict=True)]
    changed = [edge._replace(cost=t) for edge, t in zip(edges, cut[len(nodes) :], strict=True)]
    return cut[: len(nodes)], changed, sum(lows) + span


def _restricted(nodes: Nodes, edges: Edges, keep: Sequence[np.ndarray]) -> tuple[Nodes, Edges]:
    few = [node[k] for node, k in zip(nodes, keep, strict=True)]
    return few, [e._replace(cost=e.cost[np.ix_(keep[e.source], keep[e.target])]) for e in edges]


def _bound(nodes: Nodes, edges: Edges, moved: Sequence[Sequence[np.ndarray]]) -> float:
    costs = [node.astype(np.float64) for node in nodes]
    for (i, j, _), (to_i, to_j) in zip(edges, moved, strict=True):
        costs[i] += to_i
        costs[j] += to_j
    rest = (t - m[0][:, None] - m[1] for (_, _, t), m in zip(edges, moved, strict=True))
    return math.fsum(float(t.min()) for t in (*costs, *rest))


def _collected(
    nodes: Nodes, edges: Edges, near: Near, moved: list[list[np.ndarray]], i: int
) -> np.ndarray:
    """What a node costs when all that its edges cost at least, given it, was moved to it."""
    costs = nodes[i].astype(np.float64)
    for e, end, _ in near[i]:
        other = moved[e][1 - end]
        moved[e][end] = (edges[e].cost - (other if end == 0 else other[:, None])).min(axis=1 - end)
        costs += moved[e][end]
    return costs


def _tightened(
    nodes: Nodes, edges: Edges, near: Near, part: Part, cost: float, late: Callable[[], bool]
) -> Part:
    """The part with a higher bound and fewer configurations; none is left if its bound is the cost."""
    for _ in range(SWEEPS):
        few, some = _restricted(nodes, edges, part.keep)
        moved = [list(ends) for ends in part.moved]
        gap = cost - ROUNDING * abs(cost) - part.bound
        good = [np.ones(len(node), bool) for node in few]
        for back in (False, True):
            for i in sorted(range(len(few)), reverse=back):
                costs = _collected(few, some, near, moved, i)
                good[i] &= costs - costs.min() < gap
                ahead = [(e, end) for e, end, j in near[i] if (j < i) == back]
                share = 1 / max(1, len(ahead), len(near[i]) - len(ahead))
                for e, end in ahead:
                    moved[e][end] = moved[e][end] - share * costs
        bound = max(part.bound, _bound(few, some, moved))
        if bound - part.bound >= gap or not all(g.any() for g in good):
            return part._replace(bound=cost)
        gained = bound - part.bound
        moved = [[a[good[i]], b[good[j]]] for (i, j, _), (a, b) in zip(edges, moved, strict=True)]
        keep = [k[g] for k, g in zip(part.keep, good, strict=True)]
        part = part._replace(bound=bound, keep=keep, moved=moved)
        if gained < GAIN * gap or late():
            break
    return part


def _rounded(
    nodes: Nodes, edges: Edges, near: Near, moved: list[list[np.ndarray]]
) -> tuple[int, ...]:
    """A choice that follows what was moved: node by node, the best for those before it."""
    choice: list[int] = []
    for i, node in enumerate(nodes):
        costs = node.astype(np.float64)
        for e, end, j in near[i]:
            table = edges[e].cost if end == 0 else edges[e].cost.T
            # all that an edge to a node before it costs; of the others, what was moved
            costs += table[:, choice[j]] if j < i else moved[e][end]
        choice.append(int(costs.argmin()))
    return tuple(choice)


def _divided(nodes: Nodes, edges: Edges, near: Near, part: Part, numbers: count[int]) -> list[Part]:
    """A part for each configuration of the node with the most neighbours that still have a choice."""

    def weight(i: int) -> tuple[int, int]:
        return sum(len(nodes[j]) > 1 for _, _, j in near[i]), -len(nodes[i])

    i = max((i for i, node in enumerate(nodes) if len(node) > 1), key=weight)
    moved = list(map(list, part.moved))
    costs = _collected(nodes, edges, near, moved, i)
    found = []
    for x, above in enumerate(costs - costs.min()):
        turn = int(x != costs.argmin())
        keep = [*part.keep[:i], part.keep[i][x : x + 1], *part.keep[i + 1 :]]
        own = [list(ends) for ends in moved]
        for e, end, _ in near[i]:
            own[e][end] = own[e][end][x : x + 1]
        found.append(Part(turn, part.bound + float(above), next(numbers), keep, own))
    return found
