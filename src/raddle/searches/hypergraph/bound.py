"""A lower bound on the volume of coarse partitions, by column generation.

What a part receives depends on its own column of counts only, so a partition picks one column a part, and
all columns together hold every unit once. Priced at pi[l] a unit, no partition is below

    sum over parts of min over columns (received(column) - pi . column)  +  pi . units

for any pi: a stop at any time leaves a bound. A linear program over the columns so far proposes pi.

Fractions of columns spread a layer over 1.9 parts where it needs 2: that each layer is in a whole number of
parts is priced as well, and branched on.
"""

# l: layer; v: map; c: class of parts of equal capacity

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph.columns import Grid, cheapest, grid_of, sweep_of
from raddle.searches.hypergraph.counts import Array, Model, received

DEEP = 30  # layers, from which prices are climbed to first
CLIMB = 60  # steps


def bounds(
    m: Model, capacity: Array, columns: Iterable[Array], enough: float = math.inf
) -> Iterator[float]:
    """Ever better bounds on the volume of partitions within the capacities; infinity if there are none.

    `columns` of good partitions set it on its way; `enough` is the volume of the best of them.
    """
    search, count = _Search(m, capacity, columns, enough), itertools.count()
    root = Node(0.0, _fewest(m, capacity), np.full(m.layers, float(len(capacity))))
    nodes = [(0.0, next(count), root)]
    best = 0.0
    while nodes[0][0] < enough:
        _, _, node = heapq.heappop(nodes)
        others = nodes[0][0] if nodes else math.inf
        for found in search.settle(node):
            best = max(best, min(found, others))
            yield best
        apart = np.abs(search.held - np.round(search.held))
        l = int(apart.argmax())
        if apart[l] < 1e-6:
            # nothing to branch on: no bound can be above this one's
            enough = min(enough, search.bound)
        node = node._replace(bound=search.bound)
        for branch in node.split(l, search.held[l]) if apart[l] >= 1e-6 else [node]:
            heapq.heappush(nodes, (branch.bound, next(count), branch))
        best = max(best, nodes[0][0])
        yield best


class Node(NamedTuple):
    """A branch: in how many parts every layer is."""

    bound: float
    fewest: Array
    most: Array

    def split(self, l: int, held: float) -> list[Node]:
        fewest, most = self.fewest.copy(), self.most.copy()
        most[l], fewest[l] = math.floor(held), math.ceil(held)
        return [self._replace(most=most), self._replace(fewest=fewest)]


class _Search:
    """What all branches share: grids, and the columns so far."""

    def __init__(self, m: Model, capacity: Array, columns: Iterable[Array], enough: float) -> None:
        self.m, self.enough = m, enough
        self.bound, self.held = 0.0, np.zeros(m.layers)  # of the branch that was settled last
        self.sweep = sweep_of(m)
        self.sizes, self.parts = np.unique(capacity, return_counts=True)
        self.grids = [grid_of(m, self.sweep, float(c), float(capacity.sum())) for c in self.sizes]
        self.pool: dict[tuple[int, bytes], float] = {}
        for c, grid in enumerate(self.grids):
            if grid.low == 0:
                self.keep(c, np.zeros(m.layers, np.int64), 0)
        for column in columns:
            for own in np.flatnonzero(self.sizes * (1 + 1e-9) >= m.work @ column):
                self.keep(int(own), column, received(m, column))

    def keep(self, c: int, column: Array, cost: float) -> bool:
        """Whether a column of class c is new, or cheaper than it was: the search for one relaxes."""
        key = (c, column.astype(np.int64).tobytes())
        if key in self.pool and cost >= self.pool[key] * (1 - 1e-12):
            return False
        self.pool[key] = cost
        return True

    def settle(self, node: Node) -> Iterator[float]:
        """Ever better bounds of a branch; the last, and in how many parts layers are then, are kept."""
        m, grids = self.m, [self._grid(grid, node) for grid in self.grids]
        master = _Master(m, self.parts, node)
        for (c, column), cost in self.pool.items():
            self._offer(master, grids[c], c, np.frombuffer(column, np.int64), cost)
        prices, value, self.held = master.solve()
        self.bound, centre, hold = node.bound, prices, 0.0
        if node.bound == 0 and m.layers > DEEP:
            for centre in self._climb(master, grids):  # noqa: B007
                yield self.bound
            hold = 0.8
        while self.bound < self.enough and value - self.bound > 1e-9 * max(1.0, value):
            asked = hold * centre + (1 - hold) * prices
            found, _, fresh = self._ask(master, grids, asked)
            if found > self.bound:
                self.bound, centre = found, asked
            yield self.bound
            if not fresh and hold == 0:
                break
            # a column that is known already says that the centre is too far from the prices
            hold = min(0.8, hold + 0.1) if fresh else (hold / 2 if hold > 0.1 else 0.0)
            prices, value, self.held = master.solve()

    def _ask(self, master: _Master, grids: list[Grid], asked: Array) -> tuple[float, Array, bool]:
        """The bound at these prices, how far it is from holding all units once, and if a column is new."""
        m, fresh = self.m, False
        found, lacking = master.worth(asked), master.ends(asked)
        for c, grid in enumerate(grids):
            reduced, column = cheapest(m, self.sweep, grid, asked[: m.layers], asked[m.layers :])
            both = np.concatenate([column, column > 0])
            found += self.parts[c] * reduced
            if math.isinf(reduced):
                break  # no column fits: the branch has no partition
            lacking = lacking - self.parts[c] * both
            cost = reduced + float(asked @ both)
            if self.keep(c, column, cost):
                fresh = True
                master.add(c, column, cost)
        return found, lacking, fresh

    def _climb(self, master: _Master, grids: list[Grid]) -> Iterator[Array]:
        """Prices by subgradient steps towards the known volume: of many layers, a program's swing long."""
        m = self.m
        target = self.enough if math.isfinite(self.enough) else master.solve()[1]
        prices = np.concatenate([m.work * target / m.total / 2, np.zeros(m.layers)])
        scale = 1 / np.concatenate([m.units, np.maximum(1, master.node.fewest)])
        centre, way, theta, failed = 0 * prices, 0 * prices, 1.0, 0
        for _ in range(CLIMB):
            found, lacking, _ = self._ask(master, grids, prices)
            failed += 1
            if found > self.bound:
                self.bound, centre, failed = found, prices, 0
            elif failed >= 8:
                theta, failed, prices = 0.6 * theta, 0, centre
            yield centre
            if self.bound >= self.enough:
                break
            way = 0.6 * way + 0.4 * lacking * scale
            length = theta * (target - found) / max(1e-12, float(way @ way))
            prices = prices + length * way * scale
            prices[m.layers :] = np.maximum(0.0, prices[m.layers :])

    def _grid(self, grid: Grid, node: Node) -> Grid:
        """Where few parts hold a layer, each has at least what does not fit into the others."""
        biggest = self.grids[-1].most
        first = np.maximum(1, self.m.units - (node.most - 1) * biggest).astype(np.int64)
        return grid._replace(first=first)

    def _offer(self, master: _Master, grid: Grid, c: int, column: Array, cost: float) -> None:
        if ((column == 0) | (column >= grid.first)).all():
            master.add(c, column, cost)


def _fewest(m: Model, capacity: Array) -> Array:
    """How many parts hold a layer at least, in whole numbers: fractions of columns do not know."""
    biggest = np.sort(capacity)[::-1]
    found = np.ones(m.layers)
    for l in np.flatnonzero(m.work):
        fit = np.cumsum(np.floor(biggest / m.work[l] * (1 + 1e-12)))
        found[l] = 1 + np.searchsorted(fit, m.units[l])
    return found


class _Master:
    """The linear program over the columns so far; its duals are prices."""

    def __init__(self, m: Model, parts: Array, node: Node) -> None:
        import highspy

        self.m, self.node = m, node
        self.lp: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.lp.setOptionValue("output_flag", False)
        self.lp.setOptionValue("threads", 1)
        self.scale = float(max(1, m.cost.max(initial=1)))
        none = np.array([], np.int32), np.array([])
        rows = [*zip(m.units, m.units, strict=True), *zip(node.fewest, node.most, strict=True)]
        for low, high in (*rows, *zip(parts, parts, strict=True)):
            self.lp.addRow(float(low), float(high), 0, *none)
        # a unit that no column holds yet, or that one holds too often, costs all maps
        dear = sum(float(m.cost[v]) * m.units[own].sum() for v, own in enumerate(_pieces(m)))
        for row in range(2 * m.layers + len(parts)):
            self._column(dear / self.scale, [row], [1.0])
            self._column(dear / self.scale, [row], [-1.0])
        self.first = self.lp.getNumCol()
        self.columns: list[Array] = []

    def add(self, c: int, column: Array, cost: float) -> None:
        """A column of parts of class c."""
        held = np.flatnonzero(column)
        rows = [*held, *(self.m.layers + held), 2 * self.m.layers + c]
        values = [*map(float, column[held]), *(1.0 for _ in held), 1.0]
        self._column(cost / self.scale, rows, values)
        self.columns.append(column > 0)

    def _column(self, cost: float, rows: list[int], values: list[float]) -> None:
        index = np.array(rows, np.int32)
        self.lp.addCol(cost, 0.0, math.inf, len(rows), index, np.array(values))

    def worth(self, prices: Array) -> float:
        """All units, and the presence of layers in the parts that a branch allows, at these prices."""
        return float(prices @ self.ends(prices))

    def ends(self, prices: Array) -> Array:
        """How many units there are, and in how many parts a layer has to be, or may be."""
        bound = np.where(prices[self.m.layers :] >= 0, self.node.fewest, self.node.most)
        return np.concatenate([self.m.units, bound])

    def solve(self) -> tuple[Array, float, Array]:
        """Prices of units and presence, the least volume of the columns, and where layers are by it."""
        self.lp.run()
        found = self.lp.getSolution()
        duals = np.array(found.row_dual)[: 2 * self.m.layers] * self.scale
        taken = np.array(found.col_value)[self.first :]
        held = np.array(self.columns, np.float64).reshape(-1, self.m.layers).T @ taken
        return duals, self.lp.getInfo().objective_function_value * self.scale, held


def _pieces(m: Model) -> list[Array]:
    return [m.piece_layer[a:b] for a, b in zip(m.piece_at, m.piece_at[1:], strict=False)]
