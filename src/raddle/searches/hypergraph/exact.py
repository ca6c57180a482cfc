"""The coarse partition of least volume into few parts, as a mixed-integer program for HiGHS.

Beside the counts there is a bit for every layer and part, whether there are units of it, and the units of a
map that a part receives. A bit allows no more units than fit into a part, and equal parts are ordered by
their work: without both, the relaxation is worth nothing.
"""

# l, t: layers; v: map; p: part

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph.counts import Array, Model, units_received


class Exact(NamedTuple):
    """What HiGHS says at its end."""

    x: Array | None  # [layer, part]
    lower_bound: float
    proven: bool


def solve(m: Model, capacity: Array, *, seconds: float, start: Array | None = None) -> Exact:
    """The best counts within the capacities, or the best by the end of time."""
    lp = _Program(m, capacity, start)
    lp.solver.setOptionValue("time_limit", max(0.01, seconds))
    lp.solver.run()
    info = lp.solver.getInfo()
    found = None
    if info.primal_solution_status == 2:  # feasible
        values = np.array(lp.solver.getSolution().col_value)
        found = np.round(values[: m.layers * len(capacity)]).astype(np.int64)
        found = found.reshape(len(capacity), m.layers).T
    proven = str(lp.solver.getModelStatus()).endswith("kOptimal")
    return Exact(found, max(0.0, info.mip_dual_bound * lp.unit), proven)


class _Program:
    """Columns are x[p, l], then the bits a[p, l], then units received r[p, v]."""

    def __init__(self, m: Model, capacity: Array, start: Array | None) -> None:
        import highspy

        self.m, self.capacity = m, capacity
        self.unit = float(np.gcd.reduce(m.cost)) if len(m.cost) else 1.0
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for name, value in {
            "output_flag": False,
            "threads": 1,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": 0.999,  # the volume is a whole number of units
            "mip_feasibility_tolerance": 1e-9,
        }.items():
            self.solver.setOptionValue(name, value)
        self.parts, self.inf = len(capacity), highspy.kHighsInf
        self.x, self.a = 0, self.parts * m.layers
        self.r = 2 * self.parts * m.layers
        self._columns(highspy)
        self._rows()
        if start is not None:
            self._start(highspy, start)

    def _columns(self, highspy: Any) -> None:
        m = self.m
        for p in range(self.parts):
            for l in range(m.layers):
                self.solver.addVar(0.0, float(self._fitting(p, l)))
        for _ in range(self.parts * m.layers):
            self.solver.addVar(0.0, 1.0)
        for _ in range(self.parts):
            for cost in m.cost:
                self.solver.addVar(0.0, self.inf)
                self.solver.changeColCost(self.solver.getNumCol() - 1, float(cost) / self.unit)
        for i in range(self.r):
            self.solver.changeColIntegrality(i, highspy.HighsVarType.kInteger)

    def _fitting(self, p: int, l: int) -> int:
        work = float(self.m.work[l])
        most = int(self.m.units[l])
        return min(most, int(self.capacity[p] / work * (1 + 1e-12))) if work > 0 else most

    def _rows(self) -> None:
        m = self.m
        for l in range(m.layers):
            each = {self._x(p, l): 1.0 for p in range(self.parts)}
            self._row(float(m.units[l]), float(m.units[l]), each)
        scale = m.total / self.parts
        for p in range(self.parts):
            own = {self._x(p, l): float(m.work[l]) / scale for l in range(m.layers)}
            self._row(-self.inf, float(self.capacity[p]) / scale, own)
            for l in range(m.layers):
                self._row(-self.inf, 0.0, {self._x(p, l): 1.0, self._a(p, l): -self._fitting(p, l)})
            for v in range(len(m.cost)):
                self._map(p, v)
        self._order()

    def _map(self, p: int, v: int) -> None:
        m = self.m
        r = self.r + p * len(m.cost) + v
        pieces = [int(l) for l in m.piece_layer[m.piece_at[v] : m.piece_at[v + 1]]]
        own: dict[int, float] = {}
        for l in pieces:
            own[self._x(p, l)] = own.get(self._x(p, l), 0.0) + 1.0
        whole = float(m.units[pieces].sum())
        least = whole - sum(self._fitting(p, l) for l in pieces)
        for t in m.dense_layer[m.dense_at[v] : m.dense_at[v + 1]]:
            self._row(0.0, self.inf, {r: 1.0, **own, self._a(p, int(t)): -whole})
            if least > 0:
                self._row(0.0, self.inf, {r: 1.0, self._a(p, int(t)): -least})
        self._alike(p, v, r, pieces)

    def _alike(self, p: int, v: int, r: int, pieces: list[int]) -> None:
        """The sum over pieces of what a reader has more, at most; of many pieces, a column each."""
        m = self.m
        pairs = range(m.alike_at[v], m.alike_at[v + 1])
        more: dict[int, list[int]] = {}
        for a in pairs:
            more.setdefault(int(m.alike_piece[a]), []).append(int(m.alike_layer[a]))
        columns = {}
        for i, readers in more.items():
            columns[i] = r
            if len(more) > 1:
                self.solver.addVar(0.0, self.inf)
                columns[i] = self.solver.getNumCol() - 1
            for t in readers:
                row = {columns[i]: 1.0, self._x(p, pieces[i]): 1.0, self._x(p, t): -1.0}
                self._row(0.0, self.inf, row)
        if len(more) > 1:
            self._row(0.0, self.inf, {r: 1.0, **dict.fromkeys(columns.values(), -1.0)})

    def _order(self) -> None:
        """Parts of equal capacity, by their work."""
        m = self.m
        for p in range(1, self.parts):
            if self.capacity[p] == self.capacity[p - 1]:
                scale = m.total / self.parts
                own = {self._x(p - 1, l): float(m.work[l]) / scale for l in range(m.layers)}
                own |= {self._x(p, l): -float(m.work[l]) / scale for l in range(m.layers)}
                self._row(0.0, self.inf, own)

    def _start(self, highspy: Any, start: Array) -> None:
        m = self.m
        x = start.T.copy()
        for size in np.unique(self.capacity):
            own = np.flatnonzero(self.capacity == size)
            x[own] = x[own][np.argsort(-(x[own] @ m.work), kind="stable")]
        r = [
            [units_received(m, np.ascontiguousarray(own), v) for v in range(len(m.cost))]
            for own in x
        ]
        first = highspy.HighsSolution()
        values = [*x.ravel(), *(x > 0).ravel(), *np.ravel(r)]
        first.col_value = [float(value) for value in values]
        if self.solver.getNumCol() == len(values):
            self.solver.setSolution(first)

    def _x(self, p: int, l: int) -> int:
        return self.x + p * self.m.layers + l

    def _a(self, p: int, l: int) -> int:
        return self.a + p * self.m.layers + l

    def _row(self, low: float, high: float, entries: dict[int, float]) -> None:
        index = np.array(list(entries), np.int32)
        self.solver.addRow(low, high, len(entries), index, np.array(list(entries.values())))
