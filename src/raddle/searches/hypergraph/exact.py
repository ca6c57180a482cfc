"""Finds the coarse partition of least volume into few parts by a mixed-integer program for HiGHS.

In a *coarse* partition every filter (*unit*) is whole in one part; a *part* is a device's share. The
*volume* is the elements of feature *maps* that parts receive in a forward. HiGHS is a solver of linear and
mixed-integer programs. The variables are the counts of units, a presence bit for every layer and part
(whether the part has units of the layer), and the units of every map that each part receives. Two
constraints make the linear relaxation strong enough: the units of a layer in a part are limited by what
fits, times the presence bit; and parts of equal capacity are ordered by their work. A column of the program
is a variable, a row is a constraint.

A map consists of *pieces*: the units of one layer, then those of the next, as a concatenation puts them. A
*dense* reader of a map is a layer: a part that has units of it needs all units of the map. An *elementwise*
reader is an operator such as an add: a part that has unit i of it needs unit i of the map (network.py).
"""

# l, t: layers; v: map; p: part; m: the network as arrays (counts.py)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph.counts import Array, CountModel, units_received


class ExactResult(NamedTuple):
    """The result of HiGHS."""

    x: Array | None  # counts [layer, part]; None: no solution was found
    lower_bound: float  # on the volume, in elements
    proven: bool  # whether x is the best


def solve(
    m: CountModel, capacity: Array, *, seconds: float, start: Array | None = None
) -> ExactResult:
    """Finds the counts of least volume within the capacities, or the best within the time limit.

    capacity: most work, by part; start: feasible counts to begin with, [layer, part].
    """
    program = _Program(m, capacity, start)
    program.solver.setOptionValue("time_limit", max(0.01, seconds))
    program.solver.run()
    info = program.solver.getInfo()
    counts = None
    if info.primal_solution_status == 2:  # feasible
        values = np.array(program.solver.getSolution().col_value)
        counts = np.round(values[: m.num_layers * len(capacity)]).astype(np.int64)
        counts = counts.reshape(len(capacity), m.num_layers).T
    proven = str(program.solver.getModelStatus()).endswith("kOptimal")
    return ExactResult(counts, max(0.0, info.mip_dual_bound * program.objective_unit), proven)


class _Program:
    """The program. Its columns are counts x[p, l], presence bits a[p, l], units received r[p, v]."""

    def __init__(self, m: CountModel, capacity: Array, start: Array | None) -> None:
        import highspy

        self.m, self.capacity = m, capacity
        # The objective is the volume in this unit, so that it is a whole number.
        self.objective_unit = float(np.gcd.reduce(m.cost)) if len(m.cost) else 1.0
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for name, value in {
            "output_flag": False,
            "threads": 1,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": 0.999,  # below the smallest difference of two objectives
            "mip_feasibility_tolerance": 1e-9,
        }.items():
            self.solver.setOptionValue(name, value)
        self.parts, self.inf = len(capacity), highspy.kHighsInf
        # Numbers of the first columns of x, a and r:
        self.first_count, self.first_bit = 0, self.parts * m.num_layers
        self.first_received = 2 * self.parts * m.num_layers
        self._add_columns(highspy)
        self._add_rows()
        if start is not None:
            self._set_start(highspy, start)

    def _add_columns(self, highspy: Any) -> None:
        """Adds the variables with their limits; only units received have a cost."""
        m = self.m
        for p in range(self.parts):
            for l in range(m.num_layers):
                self.solver.addVar(0.0, float(self._max_units(p, l)))
        for _ in range(self.parts * m.num_layers):
            self.solver.addVar(0.0, 1.0)
        for _ in range(self.parts):
            for cost in m.cost:
                self.solver.addVar(0.0, self.inf)
                self.solver.changeColCost(
                    self.solver.getNumCol() - 1, float(cost) / self.objective_unit
                )
        for i in range(self.first_received):
            self.solver.changeColIntegrality(i, highspy.HighsVarType.kInteger)

    def _max_units(self, p: int, l: int) -> int:
        """Returns how many units of layer l fit into part p."""
        work = float(self.m.work[l])
        units = int(self.m.units[l])
        return min(units, int(self.capacity[p] / work * (1 + 1e-12))) if work > 0 else units

    def _add_rows(self) -> None:
        """Adds the constraints: all units of a layer are placed; no part exceeds its capacity;
        x <= max_units * a (units only where the presence bit is set); the units received."""
        m = self.m
        for l in range(m.num_layers):
            layer_row = {self._count_column(p, l): 1.0 for p in range(self.parts)}
            self._add_row(float(m.units[l]), float(m.units[l]), layer_row)
        scale = m.total_work / self.parts  # so that coefficients are about 1
        for p in range(self.parts):
            work_row = {
                self._count_column(p, l): float(m.work[l]) / scale for l in range(m.num_layers)
            }
            self._add_row(-self.inf, float(self.capacity[p]) / scale, work_row)
            for l in range(m.num_layers):
                self._add_row(
                    -self.inf,
                    0.0,
                    {self._count_column(p, l): 1.0, self._bit_column(p, l): -self._max_units(p, l)},
                )
            for v in range(len(m.cost)):
                self._add_map(p, v)
        self._order_equal_parts()

    def _add_map(self, p: int, v: int) -> None:
        """Adds rows for r[p, v]: a part with units of a dense reader receives all units it lacks."""
        m = self.m
        r = self.first_received + p * len(m.cost) + v
        pieces = [int(l) for l in m.piece_layer[m.piece_start[v] : m.piece_start[v + 1]]]
        held_units: dict[int, float] = {}
        for l in pieces:
            held_units[self._count_column(p, l)] = (
                held_units.get(self._count_column(p, l), 0.0) + 1.0
            )
        all_units = float(m.units[pieces].sum())
        min_received = all_units - sum(self._max_units(p, l) for l in pieces)
        for t in m.dense_layer[m.dense_start[v] : m.dense_start[v + 1]]:
            self._add_row(
                0.0, self.inf, {r: 1.0, **held_units, self._bit_column(p, int(t)): -all_units}
            )
            if min_received > 0:  # true for whole bits anyway, but makes the relaxation stronger
                self._add_row(0.0, self.inf, {r: 1.0, self._bit_column(p, int(t)): -min_received})
        self._add_elementwise(p, v, r, pieces)

    def _add_elementwise(self, p: int, v: int, r: int, pieces: list[int]) -> None:
        """Adds rows for elementwise readers: of a piece of layer l that layer t reads, part p receives at
        least x[p, t] - x[p, l] units. If the map has several such pieces, each has an additional column,
        and r is at least their sum."""
        m = self.m
        # Entries of the map's elementwise readers (counts.py):
        pairs = range(m.elementwise_start[v], m.elementwise_start[v + 1])
        readers_by_piece: dict[int, list[int]] = {}
        for a in pairs:
            readers_by_piece.setdefault(int(m.elementwise_piece[a]), []).append(
                int(m.elementwise_layer[a])
            )
        columns = {}
        for i, readers in readers_by_piece.items():
            columns[i] = r
            if len(readers_by_piece) > 1:
                self.solver.addVar(0.0, self.inf)
                columns[i] = self.solver.getNumCol() - 1
            for t in readers:
                row = {
                    columns[i]: 1.0,
                    self._count_column(p, pieces[i]): 1.0,
                    self._count_column(p, t): -1.0,
                }
                self._add_row(0.0, self.inf, row)
        if len(readers_by_piece) > 1:
            self._add_row(0.0, self.inf, {r: 1.0, **dict.fromkeys(columns.values(), -1.0)})

    def _order_equal_parts(self) -> None:
        """Adds rows that order parts of equal capacity by their work: it removes equivalent solutions."""
        m = self.m
        for p in range(1, self.parts):
            if self.capacity[p] == self.capacity[p - 1]:
                scale = m.total_work / self.parts
                work_difference = {
                    self._count_column(p - 1, l): float(m.work[l]) / scale
                    for l in range(m.num_layers)
                }
                work_difference |= {
                    self._count_column(p, l): -float(m.work[l]) / scale for l in range(m.num_layers)
                }
                self._add_row(0.0, self.inf, work_difference)

    def _set_start(self, highspy: Any, start: Array) -> None:
        """Gives HiGHS a first solution; equal parts are ordered as _order_equal_parts demands."""
        m = self.m
        x = start.T.copy()
        for size in np.unique(self.capacity):
            equal_parts = np.flatnonzero(self.capacity == size)
            x[equal_parts] = x[equal_parts][np.argsort(-(x[equal_parts] @ m.work), kind="stable")]
        r = [
            [units_received(m, np.ascontiguousarray(column), v) for v in range(len(m.cost))]
            for column in x
        ]
        first = highspy.HighsSolution()
        values = [*x.ravel(), *(x > 0).ravel(), *np.ravel(r)]
        first.col_value = [float(value) for value in values]
        if self.solver.getNumCol() == len(values):  # no additional columns of _add_elementwise
            self.solver.setSolution(first)

    def _count_column(self, p: int, l: int) -> int:
        """Returns the column of x[p, l]."""
        return self.first_count + p * self.m.num_layers + l

    def _bit_column(self, p: int, l: int) -> int:
        """Returns the column of a[p, l]."""
        return self.first_bit + p * self.m.num_layers + l

    def _add_row(self, low: float, high: float, entries: dict[int, float]) -> None:
        """Adds low <= sum of coefficient x variable <= high; entries: coefficient by column."""
        index = np.array(list(entries), np.int32)
        self.solver.addRow(low, high, len(entries), index, np.array(list(entries.values())))
