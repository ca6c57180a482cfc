"""Solves OptCNN's problem (problem.py) exactly, by eliminating one node after the other.

    minimise  sum over i of node[i][x_i]  +  sum over edges (i, j) of cost[x_i, x_j]

A node i is a group of operators, x_i its configuration; an edge has the costs of two groups together.

OptCNN (Jia et al., arXiv 1802.04924), section 5: (1) parallel edges become one; (2) a node with two
neighbours is eliminated: its costs become an edge between them, by a min-plus product; (3) the remaining
graph is searched; (4) backwards, each eliminated node takes the best configuration for the choices of its
neighbours.

Differs from the paper: edges have no direction. A node with one neighbour moves its costs to that
neighbour, so that chains need no product and series-parallel graphs are solved completely. Equal products
are computed once. The remaining graph is not enumerated: nodes with three or more neighbours are
eliminated, too, by tables over all their neighbours (bucket elimination, Dechter 1999), if those are small
enough, and otherwise solved by branch and bound. Tables are float32, with their minimum subtracted; minima
and total costs are summed in float64.
"""

# v: the node that is eliminated, i, j: neighbours of it, x: a configuration, d: a dimension of a table

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from raddle.searches.optcnn import branch_and_bound, elimination_order
from raddle.searches.optcnn.problem import Edge, cost_of, improve_locally
from raddle.searches.settings import OnProgress
from raddle.searches.stopwatch import Clock

Scope = tuple[int, ...]  # nodes, in rising order
Factor = tuple[Scope, np.ndarray]  # a table of costs: a dimension for each node of its scope
IsExpired = Callable[[], bool]  # whether the budget of the search is used up

LANES = 16  # float32 numbers in a vector register
ROWS, COLUMNS = 64, 1024  # size of a block of a product: 256 KiB, which fit the CPU's cache


class EliminationCounts(NamedTuple):
    """Statistics of a solution, for reports."""

    nodes: int  # nodes eliminated with at most two neighbours
    edges: int  # parallel edges whose costs were added to those of another edge
    remaining: int  # nodes that remained after that
    products: int  # min-plus products that were computed
    branches: int  # subproblems of branch and bound


@dataclass(frozen=True)
class Solution:
    """A choice of configurations, and how good it is."""

    choice: tuple[int, ...]  # for each node, the index of its configuration
    cost: float  # its total cost
    bound: float  # no choice costs less, up to float32 rounding
    certified: bool  # the choice is optimal, up to float32 rounding
    counts: EliminationCounts


def solve(
    nodes: Sequence[np.ndarray],
    edges: Sequence[Edge],
    *,
    limit: int = 2**26,
    clock: Clock | None = None,
    on_progress: OnProgress = lambda step: None,
) -> Solution:
    """Returns the optimal choice, or the best one until the clock expires.

    limit: the most entries of a table over three or more nodes; all such tables together have at most four
    times as many. clock: looked at between eliminations; None: there is no limit.
    """
    net = _Network(nodes, edges)

    def out_of_time() -> bool:
        return clock is not None and clock.expired

    _eliminate_up_to_two_neighbours(net, out_of_time, on_progress)
    eliminated_first, remaining = len(net.eliminated), len(net.neighbours)
    choice: dict[int, int] = {}
    certified, branches = True, 0
    for part in [] if out_of_time() else elimination_order.components(net.neighbours):
        order = elimination_order.smallest_tables_first(
            {v: net.neighbours[v] for v in part}, net.sizes, limit
        )
        if order is not None:
            _eliminate(net, order, out_of_time)
            continue
        branched = branch_and_bound.branch_and_bound(
            *net.cut_out(part),
            solve_by_elimination=lambda nodes, edges: _solve_by_elimination(
                nodes, edges, limit, out_of_time
            ),
            out_of_time=out_of_time,
            on_progress=on_progress,
        )
        choice.update(zip(part, branched.choice, strict=True))
        net.constant += branched.bound  # cut_out has removed the tables of this part
        certified, branches = certified and branched.certified, branches + branched.branches
    bound = net.constant + sum(float(table.min()) for table in net.tables.values())
    chosen = _choose_backwards(nodes, edges, net, choice)
    cost = cost_of(nodes, edges, chosen)
    certified = (certified and not net.neighbours) or bound >= cost
    counts = EliminationCounts(eliminated_first, net.merged, remaining, net.products, branches)
    return Solution(chosen, cost, min(bound, cost), certified, counts)


def _solve_by_elimination(
    nodes: Sequence[np.ndarray], edges: Sequence[Edge], limit: int, out_of_time: IsExpired
) -> tuple[tuple[int, ...], bool] | None:
    """Returns a choice, and whether it is optimal (time did not run out); None if tables get too large."""
    net = _Network(nodes, edges)
    order = elimination_order.smallest_tables_first(net.neighbours, net.sizes, limit)
    if order is None:
        return None
    _eliminate(net, order, out_of_time)
    return _choose_backwards(nodes, edges, net, {}), not net.neighbours


def _choose_backwards(
    nodes: Sequence[np.ndarray], edges: Sequence[Edge], net: _Network, choice: dict[int, int]
) -> tuple[int, ...]:
    """Returns a configuration for each node; eliminated nodes are decided in reverse order (step 4).

    If time ran out, the other nodes are decided first. choice: nodes that are decided already; it is
    filled.
    """
    for v in net.neighbours:
        choice[v] = _best_configuration(
            v, [(scope, net.tables[scope]) for scope in sorted(net.scopes_of[v])], choice
        )
    for v, factors in reversed(net.eliminated):
        choice[v] = _best_configuration(v, factors, choice)
    # Costs that are equal in float32 may differ in float64.
    return improve_locally(nodes, edges, [choice[i] for i in range(len(nodes))])


def _best_configuration(v: int, factors: Sequence[Factor], choice: Mapping[int, int]) -> int:
    """Returns the best configuration of v. Over neighbours without a choice, each table is minimised."""
    costs = np.zeros(1)
    for scope, table in factors:
        free = [i for i in scope if i == v or i not in choice]
        rows = table[tuple(slice(None) if i in free else choice[i] for i in scope)]
        costs = costs + rows.min(axis=tuple(d for d, i in enumerate(free) if i != v))
    return int(costs.argmin())


# -- elimination in order ------------------------------------------------------------------------


def _eliminate(net: _Network, order: Sequence[int], out_of_time: IsExpired) -> None:
    for v in order:
        if out_of_time():
            return
        net.eliminate(v)


def _eliminate_up_to_two_neighbours(
    net: _Network, out_of_time: IsExpired, on_progress: OnProgress
) -> None:
    """(2) Eliminates nodes with at most two neighbours, until every node has three or more."""
    total = len(net.neighbours)
    while to_eliminate := [
        v for v, neighbours in net.neighbours.items() if len(neighbours) < 2
    ] or elimination_order.two_neighbour_nodes(net.neighbours):
        on_progress({"step": "eliminate", "done": total - len(net.neighbours), "of": total})
        # The list grows: a chain is eliminated from its ends, without products.
        for v in to_eliminate:
            if out_of_time():
                return
            if v in net.neighbours:
                neighbours_of_v = net.neighbours[v]
                net.eliminate(v)
                to_eliminate += [i for i in neighbours_of_v if len(net.neighbours[i]) < 2]


# -- tables --------------------------------------------------------------------------------------


class _Network:
    """The part of the problem that is not eliminated yet, as cost tables over sets of nodes.

    A scope is such a set. A table over one node has its costs; a table over two nodes is an edge.
    """

    def __init__(self, nodes: Sequence[np.ndarray], edges: Sequence[Edge]) -> None:
        self.sizes = [len(node) for node in nodes]
        self.tables: dict[Scope, np.ndarray] = {}  # float64 over one node, float32 over more
        self.scopes_of: dict[int, set[Scope]] = {i: set() for i in range(len(nodes))}  # by node
        # By node that is not eliminated, the nodes with which it shares a table.
        self.neighbours: dict[int, set[int]] = {i: set() for i in range(len(nodes))}
        # Eliminated nodes, with the tables that they had then.
        self.eliminated: list[tuple[int, list[Factor]]] = []
        self.constant = 0.0  # sum of the minima that were subtracted from tables
        self.merged = self.products = 0  # statistics
        self.cache: dict[Hashable, tuple[Any, Any]] = {}  # key of a computation -> (result, inputs)
        for i, node in enumerate(nodes):
            assert node.ndim == 1 <= len(node), f"node {i} has costs of shape {node.shape}"
            assert node.min() > -np.inf, f"a cost of node {i} is not a number"
            self.add((i,), node)
        for i, j, cost in edges:
            assert i != j, f"node {i} has an edge to itself: add the diagonal to its costs"
            assert cost.shape == (self.sizes[i], self.sizes[j]), f"edge {i}-{j} is {cost.shape}"
            assert cost.min() > -np.inf, f"a cost of edge {i}-{j} is not a number"
            table = self._cached((id(cost), i < j), _lower_node_first, cost, i < j)
            self.add((min(i, j), max(i, j)), table)

    def add(self, scope: Scope, table: np.ndarray) -> None:
        """(1) Stores a table, or adds it to the table over the same nodes if there is one."""
        free = [d for d, n in enumerate(table.shape) if n > 1]
        if len(free) < len(scope) > 1:  # nodes with a single configuration drop out
            scope, table = tuple(scope[d] for d in free), table.squeeze()
        old = self.tables.get(scope)
        if not scope:
            self.constant += float(table)
        elif len(scope) == 1:
            vector, low = _subtract_minimum(
                table.astype(np.float64) if old is None else old + table
            )
            self.constant += low
            # Equal vectors become one object, so that cache keys made of ids are equal, too.
            self.tables[scope] = self.cache.setdefault(vector.tobytes(), (vector, None))[0]
        elif old is not None:
            self.merged += len(scope) == 2
            key = ("+", *sorted((id(old), id(table)))) if len(scope) == 2 else None
            self.tables[scope] = self._cached(key, np.add, old, table)
        else:
            self.tables[scope] = table
        for i in scope:
            self.scopes_of[i].add(scope)
            self.neighbours[i].update(set(scope) - {i})

    def eliminate(self, v: int) -> None:
        """Removes a node: its tables become one table over its neighbours, minimised over the node."""
        factors = [(scope, self.tables.pop(scope)) for scope in sorted(self.scopes_of.pop(v))]
        self.eliminated.append((v, factors))
        others = tuple(sorted(self.neighbours.pop(v)))
        for i in others:
            self.neighbours[i].discard(v)
            self.scopes_of[i] = {scope for scope in self.scopes_of[i] if v not in scope}
        if len(others) == 2 == max(len(scope) for scope, _ in factors):
            # The key names the nodes 0, 1, 2, so that equal tables on other nodes have the same key.
            role = {others[0]: 0, v: 1, others[1]: 2}
            key = sorted((id(table), *map(role.__getitem__, scope)) for scope, table in factors)
            table, low = self._cached(tuple(key), self._product, factors, *role)
        else:
            table, low = _subtract_minimum(_minimise_out(factors, others, v, self.sizes))
        self.constant += low
        self.add(others, table)

    def cut_out(self, part: Sequence[int]) -> tuple[list[np.ndarray], list[Edge]]:
        """Removes nodes and returns them as a problem; their tables must be over at most two nodes."""
        edges = {scope for v in part for scope in self.scopes_of[v] if len(scope) > 1}
        position = {v: k for k, v in enumerate(part)}
        nodes = [self.tables.pop((v,)) for v in part]
        for v in part:
            del self.scopes_of[v], self.neighbours[v]
        return nodes, [
            Edge(position[i], position[j], self.tables.pop((i, j))) for i, j in sorted(edges)
        ]

    def _cached(self, key: Hashable | None, make: Callable[..., Any], *inputs: Any) -> Any:
        """Returns make(*inputs), computed once for each key; without a key, it is computed every time."""
        # Keys contain ids of arrays. The inputs are kept alive, so that no other array can get the same id.
        if key is None:
            return make(*inputs)
        if key not in self.cache:
            self.cache[key] = make(*inputs), inputs
        return self.cache[key][0]

    def _product(
        self, factors: Sequence[Factor], i: int, v: int, j: int
    ) -> tuple[np.ndarray, float]:
        """Returns v's costs as a table over i and j (a min-plus product), and its subtracted minimum."""
        self.products += 1
        a = _sum_tables([f for f in factors if j not in f[0]], (i, v))  # f: (scope, table)
        b = _sum_tables([f for f in factors if j in f[0]], (v, j))
        return _subtract_minimum(min_plus(a, b))


def _lower_node_first(cost: np.ndarray, in_order: bool) -> np.ndarray:
    """Returns the float32 table of an edge, transposed unless its source has the lower number."""
    table = np.asarray(cost, np.float32)
    return table if in_order else table.T


def _subtract_minimum(table: np.ndarray) -> tuple[np.ndarray, float]:
    """Subtracts the minimum of a table from it, in place; returns both. Infinite tables are unchanged."""
    minimum = float(table.min())
    if math.isinf(minimum):
        return table, 0.0
    table -= minimum
    return table, minimum


def _aligned_view(scope: Scope, table: np.ndarray, axes: Scope) -> np.ndarray:
    """Returns a view with a dimension for each node of `axes`, of size 1 for nodes outside of the scope."""
    transposed = table.transpose(sorted(range(len(scope)), key=lambda d: axes.index(scope[d])))
    return transposed[tuple(slice(None) if i in scope else None for i in axes)]


def _sum_tables(factors: Sequence[Factor], axes: Scope, dtype: type = np.float32) -> np.ndarray:
    """Returns the sum of the tables, with one dimension for each node of `axes`."""
    views = [_aligned_view(s, t.astype(dtype, copy=False), axes) for s, t in factors]
    return np.ascontiguousarray(functools.reduce(np.add, views))


def _minimise_out(
    factors: Sequence[Factor], others: Scope, v: int, sizes: Sequence[int]
) -> np.ndarray:
    """Returns a table over v's neighbours: the sum of v's tables, minimised over v's configurations."""
    if any(len(scope) > len(others) for scope, _ in factors):  # one table covers all already
        dtype = np.float64 if len(others) < 2 else np.float32
        return np.asarray(_sum_tables(factors, (*others, v), dtype).min(axis=-1))
    left, right = _two_sides(factors, v, sizes)
    if right:
        a = _sum_tables([f for f in factors if not set(right) & set(f[0])], (*left, v))
        b = _sum_tables([f for f in factors if set(right) & set(f[0])], (v, *right))
        flat = min_plus(a.reshape(-1, len(b)), b.reshape(len(b), -1))
        return _aligned_view((*left, *right), flat.reshape(a.shape[:-1] + b.shape[1:]), others)
    # The neighbours cannot be divided: one of them is fixed to each of its configurations x in turn.
    d = max(range(len(others)), key=lambda d: sum(others[d] in scope for scope, _ in factors))
    least = np.empty([sizes[i] for i in others], np.float32)
    for x, out in enumerate(np.moveaxis(least, d, 0)):
        cut = [_with_fixed_node(factor, others[d], x) for factor in factors]
        out[...] = _minimise_out(cut, others[:d] + others[d + 1 :], v, sizes)
    return least


def _with_fixed_node(factor: Factor, i: int, x: int) -> Factor:
    """Returns the table for configuration x of node i, without the dimension of i."""
    scope, table = factor
    if i not in scope:
        return factor
    return tuple(j for j in scope if j != i), np.moveaxis(table, scope.index(i), 0)[x]


def _two_sides(factors: Sequence[Factor], v: int, sizes: Sequence[int]) -> tuple[Scope, Scope]:
    """Returns the neighbours of v in two sets, such that no table is over nodes of both sets.

    The sets' tables have about equal size. The second set is empty if there is no such division.
    """

    def entries(side: Collection[int]) -> int:
        return math.prod(sizes[i] for i in side)

    joined: list[set[int]] = []  # sets of neighbours that tables connect
    for scope, _ in factors:
        nodes = set(scope) - {v}
        apart = [earlier for earlier in joined if earlier.isdisjoint(nodes)]
        joined = [*apart, nodes.union(*(earlier for earlier in joined if earlier not in apart))]
    left: list[int] = []
    right: list[int] = []
    for nodes in sorted(joined, key=entries, reverse=True):
        min(left, right, key=entries).extend(nodes)
    return tuple(left), tuple(right)


def min_plus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the min-plus product: out[i, j] = min over k of a[i, k] + b[k, j]."""
    if b.shape[1] < LANES < len(a):  # the JIT-compiled loop is vectorised along j
        transposed = min_plus(np.ascontiguousarray(b.T), np.ascontiguousarray(a.T))
        return np.ascontiguousarray(transposed.T)
    out = np.full((len(a), b.shape[1]), np.inf, np.float32)
    _min_plus(a, b, out)
    return out


@njit(cache=True)
def _min_plus(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Writes the min-plus product into `out`: in blocks of i and j that fit the cache, four k at once."""
    fours = a.shape[1] - a.shape[1] % 4
    for i0 in range(0, out.shape[0], ROWS):
        rows = range(i0, min(i0 + ROWS, out.shape[0]))
        for j0 in range(0, out.shape[1], COLUMNS):
            j1 = j0 + COLUMNS
            for k in range(0, fours, 4):
                b0, b1, b2, b3 = b[k, j0:j1], b[k + 1, j0:j1], b[k + 2, j0:j1], b[k + 3, j0:j1]
                for i in rows:
                    a0, a1, a2, a3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
                    o = out[i, j0:j1]
                    for j in range(len(o)):
                        low, high = min(a0 + b0[j], a1 + b1[j]), min(a2 + b2[j], a3 + b3[j])
                        o[j] = min(o[j], min(low, high))
            for k in range(fours, a.shape[1]):
                b0 = b[k, j0:j1]
                for i in rows:
                    a0 = a[i, k]
                    o = out[i, j0:j1]
                    for j in range(len(o)):
                        o[j] = min(o[j], a0 + b0[j])
