"""Computes a lower bound on the volume of coarse partitions, by column generation and branch and bound.

In a *coarse* partition every filter (*unit*) is whole in one part; a *part* is a device's share. The
*volume* is the elements of feature *maps* that parts receive in a forward. A *column* is the number of
units of each layer in one part (counts.py); it alone decides what the part receives. A partition is one
column per part such that the columns together have every unit once. For any prices pi[l] per unit, no
partition has a smaller volume than

    sum over parts of min over columns (received(column) - pi . column)  +  pi . units

where pi . column is the dot product. So the search has a valid bound whenever it stops. column_pricing.py
finds the minimum: its *sweep* visits the layers one after the other, and its *grid* counts the work of a
part in *cells*, equal amounts of work. The *master program*, a linear program over the columns found so
far, proposes the prices: they are its dual values.

The linear program may combine fractions of columns, so that a layer is in 1.9 parts where it needs 2. So
the number of parts that have units of a layer (its *presence*) has a price as well, and the search
branches on it.
"""

# l: layer; v: map; c: class of parts, all of equal capacity; m: the network as arrays (counts.py)

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph.column_pricing import (
    WorkGrid,
    build_grid,
    build_sweep,
    cheapest_column,
)
from raddle.searches.hypergraph.counts import Array, CountModel, elements_received

SUBGRADIENT_LAYERS = 30  # a network with more layers starts with subgradient steps
SUBGRADIENT_STEPS = 60  # at most


def volume_bounds(
    m: CountModel, capacity: Array, columns: Iterable[Array], stop_at: float = math.inf
) -> Iterator[float]:
    """Yields rising lower bounds on the volume of partitions within the capacities; inf if there is none.

    capacity: most work, by part; columns: of good partitions, to begin with; stop_at: the volume of the
    best partition so far, at which the search ends.
    """
    search, count = _ColumnSearch(m, capacity, columns, stop_at), itertools.count()
    root = BranchNode(0.0, _fewest_parts(m, capacity), np.full(m.num_layers, float(len(capacity))))
    # A heap of (bound, count, branch), the least bound first; the count decides between equal bounds.
    nodes = [(0.0, next(count), root)]
    best = 0.0
    while nodes[0][0] < stop_at:
        _, _, node = heapq.heappop(nodes)
        other_bounds = nodes[0][0] if nodes else math.inf  # the least bound of the others
        for bound in search.solve_node(node):
            best = max(best, min(bound, other_bounds))
            yield best
        # For each layer: how far its number of parts is from a whole number
        fractional = np.abs(search.parts_by_layer - np.round(search.parts_by_layer))
        l = int(fractional.argmax())
        if fractional[l] < 1e-6:
            # Every layer is in a whole number of parts: there is nothing to branch on.
            stop_at = min(stop_at, search.bound)
        node = node._replace(bound=search.bound)
        for branch in node.split(l, search.parts_by_layer[l]) if fractional[l] >= 1e-6 else [node]:
            heapq.heappush(nodes, (branch.bound, next(count), branch))
        best = max(best, nodes[0][0])
        yield best


class BranchNode(NamedTuple):
    """A branch of the search: limits on the number of parts that have units of each layer."""

    bound: float  # on the volume, inherited from the branch before
    min_parts: Array  # by layer
    max_parts: Array  # by layer

    def split(self, l: int, parts: float) -> list[BranchNode]:
        """Returns two branches: layer l in at most floor(parts), or in at least ceil(parts) parts."""
        min_parts, max_parts = self.min_parts.copy(), self.max_parts.copy()
        max_parts[l], min_parts[l] = math.floor(parts), math.ceil(parts)
        return [self._replace(max_parts=max_parts), self._replace(min_parts=min_parts)]


class _ColumnSearch:
    """Bounds of branches; all branches share the grids and the columns found so far."""

    def __init__(
        self, m: CountModel, capacity: Array, columns: Iterable[Array], stop_at: float
    ) -> None:
        self.m, self.stop_at = m, stop_at
        # The bound and the parts of each layer, of the branch that was solved last:
        self.bound, self.parts_by_layer = 0.0, np.zeros(m.num_layers)
        self.sweep = build_sweep(m)
        self.capacities, self.parts_in_class = np.unique(capacity, return_counts=True)
        self.grids = [
            build_grid(m, self.sweep, float(limit), float(capacity.sum()))
            for limit in self.capacities
        ]
        self.column_costs: dict[tuple[int, bytes], float] = {}  # by class and column
        for c, grid in enumerate(self.grids):
            if grid.min_cells == 0:  # a part of this class may be empty
                self.add_column(c, np.zeros(m.num_layers, np.int64), 0)
        for column in columns:
            for fitting_class in np.flatnonzero(self.capacities * (1 + 1e-9) >= m.work @ column):
                self.add_column(int(fitting_class), column, elements_received(m, column))

    def add_column(self, c: int, column: Array, cost: float) -> bool:
        """Adds a column for class c; returns False if it is there already at this cost or less.

        The pricing is a relaxation, so it may find a known column at a lower cost.
        """
        key = (c, column.astype(np.int64).tobytes())
        if key in self.column_costs and cost >= self.column_costs[key] * (1 - 1e-12):
            return False
        self.column_costs[key] = cost
        return True

    def solve_node(self, node: BranchNode) -> Iterator[float]:
        """Yields rising bounds of a branch; the last one stays in self.bound.

        self.parts_by_layer is then the number of parts per layer in the master program's solution.
        """
        m, grids = self.m, [self._node_grid(grid, node) for grid in self.grids]
        master = _MasterProgram(m, self.parts_in_class, node)
        for (c, column), cost in self.column_costs.items():
            self._add_if_allowed(master, grids[c], c, np.frombuffer(column, np.int64), cost)
        prices, value, self.parts_by_layer = master.solve()
        # centre: the prices of the best bound so far; value: the volume of the master program, at which the
        # bound of the branch is complete
        self.bound, centre, centre_weight = node.bound, prices, 0.0
        if node.bound == 0 and m.num_layers > SUBGRADIENT_LAYERS:
            for centre in self._subgradient_ascent(master, grids):  # noqa: B007
                yield self.bound
            centre_weight = 0.8
        while self.bound < self.stop_at and value - self.bound > 1e-9 * max(1.0, value):
            trial_prices = centre_weight * centre + (1 - centre_weight) * prices
            bound, _, new_column = self._price_columns(master, grids, trial_prices)
            if bound > self.bound:
                self.bound, centre = bound, trial_prices
            yield self.bound
            if not new_column and centre_weight == 0:
                break
            # The prices tried lie between the best so far (centre) and those of the master program, which
            # oscillate. If they give no new column, they are too near the centre.
            centre_weight = (
                min(0.8, centre_weight + 0.1)
                if new_column
                else (centre_weight / 2 if centre_weight > 0.1 else 0.0)
            )
            prices, value, self.parts_by_layer = master.solve()

    def _price_columns(
        self, master: _MasterProgram, grids: list[WorkGrid], prices: Array
    ) -> tuple[float, Array, bool]:
        """Returns the bound at these prices, its subgradient, and whether a column is new.

        prices: of a unit of each layer, then of the presence of each layer.
        The subgradient: how many units of each layer, then how much presence, the cheapest columns lack
        together; negative if they have too many.
        """
        m, new_column = self.m, False
        bound, subgradient = master.total_price(prices), master.row_limits(prices)
        for c, grid in enumerate(grids):
            # reduced_cost: elements that the part receives, less the prices of its units and presence
            reduced_cost, column = cheapest_column(
                m, self.sweep, grid, prices[: m.num_layers], prices[m.num_layers :]
            )
            counts_and_presence = np.concatenate([column, column > 0])
            bound += self.parts_in_class[c] * reduced_cost
            if math.isinf(reduced_cost):
                break  # no column is allowed: the branch has no partition
            subgradient = subgradient - self.parts_in_class[c] * counts_and_presence
            cost = reduced_cost + float(prices @ counts_and_presence)
            if self.add_column(c, column, cost):
                new_column = True
                master.add(c, column, cost)
        return bound, subgradient, new_column

    def _subgradient_ascent(self, master: _MasterProgram, grids: list[WorkGrid]) -> Iterator[Array]:
        """Raises the bound by subgradient steps towards stop_at; yields the best prices so far.

        With many layers the prices of the master program oscillate for a long time at first.
        """
        m = self.m
        # solve()[1]: the volume of the master program
        target = self.stop_at if math.isfinite(self.stop_at) else master.solve()[1]
        prices = np.concatenate([m.work * target / m.total_work / 2, np.zeros(m.num_layers)])
        # Factors that relate a subgradient to the sizes of rows: units of a layer, parts that have it
        scale = 1 / np.concatenate([m.units, np.maximum(1, master.node.min_parts)])
        # theta: factor of the step size; failed: steps since the bound rose last
        centre, direction, theta, failed = 0 * prices, 0 * prices, 1.0, 0
        for _ in range(SUBGRADIENT_STEPS):
            bound, subgradient, _ = self._price_columns(master, grids, prices)
            failed += 1
            if bound > self.bound:
                self.bound, centre, failed = bound, prices, 0
            elif failed >= 8:
                theta, failed, prices = 0.6 * theta, 0, centre
            yield centre
            if self.bound >= self.stop_at:
                break
            direction = 0.6 * direction + 0.4 * subgradient * scale
            step_size = theta * (target - bound) / max(1e-12, float(direction @ direction))
            prices = prices + step_size * direction * scale
            prices[m.num_layers :] = np.maximum(0.0, prices[m.num_layers :])

    def _node_grid(self, grid: WorkGrid, node: BranchNode) -> WorkGrid:
        """Returns the grid of a branch, with the fewest units of each layer in a part that has any.

        If at most n parts have the layer, each of them needs the units that do not fit into n - 1 parts.
        """
        max_units = self.grids[-1].max_units  # of the class with the largest capacity
        min_units = np.maximum(1, self.m.units - (node.max_parts - 1) * max_units).astype(np.int64)
        return grid._replace(min_units=min_units)

    def _add_if_allowed(
        self, master: _MasterProgram, grid: WorkGrid, c: int, column: Array, cost: float
    ) -> None:
        """Adds a column to the master program if the branch allows its numbers of units."""
        if ((column == 0) | (column >= grid.min_units)).all():
            master.add(c, column, cost)


def _fewest_parts(m: CountModel, capacity: Array) -> Array:
    """Returns, for each layer, the fewest parts into which its units fit.

    The linear program, which may take fractions of columns, does not see this limit.
    """
    capacities = np.sort(capacity)[::-1]
    fewest = np.ones(m.num_layers)
    for l in np.flatnonzero(m.work):
        units_that_fit = np.cumsum(np.floor(capacities / m.work[l] * (1 + 1e-12)))
        fewest[l] = 1 + np.searchsorted(units_that_fit, m.units[l])
    return fewest


class _MasterProgram:
    """The linear program that combines the columns found so far; its dual values are prices.

    Rows: units of each layer, parts that have the layer, number of parts of each class.
    """

    def __init__(self, m: CountModel, parts: Array, node: BranchNode) -> None:
        import highspy

        self.m, self.node = m, node
        self.lp: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.lp.setOptionValue("output_flag", False)
        self.lp.setOptionValue("threads", 1)
        # Costs are divided by this, so that the solver has small numbers:
        self.scale = float(max(1, m.cost.max(initial=1)))
        no_entries = np.array([], np.int32), np.array([])
        rows = [
            *zip(m.units, m.units, strict=True),
            *zip(node.min_parts, node.max_parts, strict=True),
        ]
        for low, high in (*rows, *zip(parts, parts, strict=True)):
            self.lp.addRow(float(low), float(high), 0, *no_entries)
        # Slack columns, so that the program always has a solution; each costs as much as all maps.
        penalty = sum(
            float(m.cost[v]) * m.units[layers].sum() for v, layers in enumerate(_pieces_by_map(m))
        )
        for row in range(2 * m.num_layers + len(parts)):
            self._add_lp_column(penalty / self.scale, [row], [1.0])
            self._add_lp_column(penalty / self.scale, [row], [-1.0])
        self.first_column = self.lp.getNumCol()
        self.presence_columns: list[Array] = []  # by column: a mask of the layers that it has

    def add(self, c: int, column: Array, cost: float) -> None:
        """Adds a column for parts of class c; cost: elements that such a part receives."""
        layers = np.flatnonzero(column)
        rows = [*layers, *(self.m.num_layers + layers), 2 * self.m.num_layers + c]
        values = [*map(float, column[layers]), *(1.0 for _ in layers), 1.0]
        self._add_lp_column(cost / self.scale, rows, values)
        self.presence_columns.append(column > 0)

    def _add_lp_column(self, cost: float, rows: list[int], values: list[float]) -> None:
        """Adds a variable >= 0 to the linear program, with its coefficients in the rows."""
        index = np.array(rows, np.int32)
        self.lp.addCol(cost, 0.0, math.inf, len(rows), index, np.array(values))

    def total_price(self, prices: Array) -> float:
        """Returns the price of all units and of the presence that the branch requires or allows."""
        return float(prices @ self.row_limits(prices))

    def row_limits(self, prices: Array) -> Array:
        """Returns the units of each layer, then the fewest parts that must have it; where the price of
        presence is negative, the most that may."""
        bound = np.where(prices[self.m.num_layers :] >= 0, self.node.min_parts, self.node.max_parts)
        return np.concatenate([self.m.units, bound])

    def solve(self) -> tuple[Array, float, Array]:
        """Returns the prices of units and presence, the volume, and the parts that have each layer."""
        self.lp.run()
        solution = self.lp.getSolution()
        duals = np.array(solution.row_dual)[: 2 * self.m.num_layers] * self.scale
        column_values = np.array(solution.col_value)[self.first_column :]
        parts_by_layer = (
            np.array(self.presence_columns, np.float64).reshape(-1, self.m.num_layers).T
            @ column_values
        )
        return duals, self.lp.getInfo().objective_function_value * self.scale, parts_by_layer


def _pieces_by_map(m: CountModel) -> list[Array]:
    """Returns, for each map, the layers of its pieces (a piece: the units of one layer in a map)."""
    return [m.piece_layer[a:b] for a, b in zip(m.piece_start, m.piece_start[1:], strict=False)]
