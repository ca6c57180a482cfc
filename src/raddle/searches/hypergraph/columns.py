"""The cheapest column of counts of one part, at prices of units: what a lower bound asks for (bound.py).

It is found on a grid of work that is rounded down (a relaxation), layer by layer from the last to the
first, where a bit for every map that is still open says whether a reader is in the part. Units that are
read alike are paid only where the part has no unit of the layer read (a relaxation, too).
"""

# l, t: layers; v: map; s: state of the open bits; b: cell of the grid; k: units

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.counts import Array, Model

EFFORT = 300_000  # cells x layers x states: some 10 ms a column
WIDTH = 6  # bits that may be open at once: readers are left out until they are so few
OPEN, LAYER, CLOSE = 0, 1, 2

# what a bit is of: the layers where it closes and opens
Spans = dict[tuple[str, int], tuple[int, int]]


class Sweep(NamedTuple):
    """The steps of the search for a column: open a bit, choose the units of a layer, close a bit."""

    what: Array
    which: Array  # bit, or layer
    cost: Array  # elements if an opened bit is set
    own: Array  # by layer: bit that says whether the part has units of it, or -1
    need: Array  # by layer: bits that its units need
    gain_at: Array
    gain_bit: Array  # a unit saves this if the bit is set
    gain: Array
    alike_at: Array
    alike_bits: Array  # a unit costs this if none of the bits is set
    alike: Array
    states: int


class Grid(NamedTuple):
    """Work of a part in cells, rounded down."""

    cells: int
    low: int  # cells that a part uses at least
    step: float  # work of a cell
    first: Array  # units of a layer, where there are any, at least
    most: Array  # and at most


def cheapest(
    m: Model, sweep: Sweep, grid: Grid, prices: Array, presence: Array
) -> tuple[float, Array]:
    """The least of received - prices . column - presence . (column > 0), and a column that has it."""
    column = np.zeros(m.layers, np.int64)
    least = _cheapest(m.work, sweep, grid, prices.copy(), presence.copy(), column)
    return float(least), column


def grid_of(m: Model, sweep: Sweep, capacity: float, all_capacity: float) -> Grid:
    """A grid that the units' work is a multiple of, as nearly as possible."""
    usual = min(2400, max(200, EFFORT // (sweep.states * m.layers)))
    work = m.work[m.work > 0]
    steps = [capacity / usual, *(w / i for w in np.unique(work) for i in range(1, 5))]
    steps = [s for s in steps if usual / 2 <= capacity / s * (1 + 1e-9) <= 2 * usual]

    def lost(step: float) -> float:
        return float(((work / step + 1e-6) % 1.0).sum() * step)

    step = min(steps, key=lost) * (1 - 1e-9)
    most = np.minimum(m.units, np.floor(capacity / np.maximum(m.work, 1e-300) * (1 + 1e-12)))
    # what does not fit into all other parts is in this one; bundles are rounded down ten times at most
    least = (m.total - (all_capacity - capacity)) / step - 14 * m.layers
    cells = int(capacity * (1 + 1e-12) / step)
    return Grid(
        cells,
        max(0, min(cells, int(least))),
        step,
        np.ones(m.layers, np.int64),
        most.astype(np.int64),
    )


def sweep_of(m: Model) -> Sweep:
    """Readers far from their map are left out where too many bits would be open at once."""
    maps = [_Map(m, v) for v in range(len(m.cost))]
    while True:
        spans: Spans = {}
        for key, (a, b) in (own for v in maps for own in v.spans().items()):
            first, last = spans.get(key, (a, b))  # two maps may be of one layer
            spans[key] = min(first, a), max(last, b)
        depth = np.zeros(m.layers, np.int64)
        for first, last in spans.values():
            depth[first : last + 1] += 1
        if depth.max(initial=0) <= WIDTH:
            return _compiled(m, maps, spans)
        at = int(depth.argmax())
        over = [v for v in maps if any(a <= at <= b for a, b in v.spans().values())]
        max(over, key=lambda v: v.length()).shorten()


class _Map:
    """What of a map the relaxation keeps: its readers of all units, and one alike reader a piece."""

    def __init__(self, m: Model, v: int) -> None:
        self.number, self.cost = v, int(m.cost[v])
        self.pieces = [int(l) for l in m.piece_layer[m.piece_at[v] : m.piece_at[v + 1]]]
        self.dense = sorted({int(t) for t in m.dense_layer[m.dense_at[v] : m.dense_at[v + 1]]})
        pairs = range(m.alike_at[v], m.alike_at[v + 1])
        self.alike = {int(m.alike_piece[a]): int(m.alike_layer[a]) for a in pairs}

    def spans(self) -> Spans:
        """From which layer to which a bit is open: of the map, and of a piece that is read alike."""
        found = {}
        everyone = [*self.pieces, *self.dense, *self.alike.values()]
        if self.dense:
            found["map", self.number] = (min(everyone), max(everyone))
        for i, t in self.alike.items():
            l = self.pieces[i]
            found["own", l] = (min(l, t), max(l, t))
        return found

    def length(self) -> int:
        return max(b - a for a, b in self.spans().values())

    def shorten(self) -> None:
        """Leaves out the reader that is farthest from the pieces."""
        readers = [(t, None) for t in self.dense] + [(t, i) for i, t in self.alike.items()]
        t, i = max(readers, key=lambda r: abs(r[0] - self.pieces[0]))
        if i is None:
            self.dense.remove(t)
        else:
            del self.alike[i]


def _compiled(m: Model, maps: list[_Map], spans: Spans) -> Sweep:
    steps: list[tuple[int, int, int]] = []
    free, bit, places = list(range(WIDTH))[::-1], {}, {}
    gains: list[list[tuple[int, int]]] = [[] for _ in range(m.layers)]
    alike: list[list[tuple[int, int]]] = [[] for _ in range(m.layers)]
    need, own = np.zeros(m.layers, np.int64), np.full(m.layers, -1)
    for l in reversed(range(m.layers)):
        for key, (_, last) in spans.items():
            if last == l:
                bit[key] = places[key] = free.pop()
                v = maps[key[1]] if key[0] == "map" else None
                whole = v.cost * sum(int(m.units[i]) for i in v.pieces) if v else 0
                steps.append((OPEN, bit[key], whole))
        own[l] = bit.get(("own", l), -1)
        for v in maps:
            if v.dense and l in v.dense:
                need[l] |= 1 << bit["map", v.number]
            if v.dense and l in v.pieces:
                gains[l].append((bit["map", v.number], v.cost * v.pieces.count(l)))
            for i, t in v.alike.items():
                if t == l:
                    either = 1 << bit["own", v.pieces[i]]
                    either |= 1 << bit["map", v.number] if v.dense else 0
                    alike[l].append((either, v.cost))
        steps.append((LAYER, l, 0))
        for key, (first, _) in spans.items():
            if first == l:
                steps.append((CLOSE, bit[key], 0))
                free.append(bit.pop(key))
    what, which, cost = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    states = 1 << (1 + max(places.values(), default=-1))
    return Sweep(what, which, cost, own, need, *_pairs(gains), *_pairs(alike), states)


def _pairs(lists: list[list[tuple[int, int]]]) -> tuple[Array, Array, Array]:
    at = np.cumsum([0, *(len(own) for own in lists)]).astype(np.int64)
    flat = [pair for own in lists for pair in own]
    return at, np.array([i for i, _ in flat], np.int64), np.array([c for _, c in flat], np.int64)


@njit(cache=True)
def _worth(sweep: Sweep, prices: Array, l: int, s: int) -> float:
    """What a unit brings in a state."""
    worth: float = prices[l]
    for i in range(sweep.gain_at[l], sweep.gain_at[l + 1]):
        if s >> sweep.gain_bit[i] & 1:
            worth += sweep.gain[i]
    for i in range(sweep.alike_at[l], sweep.alike_at[l + 1]):
        if s & sweep.alike_bits[i] == 0:
            worth -= sweep.alike[i]
    return worth


@njit(cache=True)
def _cheapest(
    work: Array, sweep: Sweep, grid: Grid, prices: Array, presence: Array, column: Array
) -> float:
    cells = grid.cells
    shape = (len(sweep.what), sweep.states, cells + 1)
    # least[s, b]: of what is chosen so far, in b cells; chosen: units, or the bit that was closed
    least = np.full(shape[1:], np.inf)
    chosen, used = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    least[0, 0] = 0.0
    for i in range(shape[0]):
        bit = 1 << sweep.which[i]
        if sweep.what[i] == LAYER:
            l = sweep.which[i]
            for s in range(sweep.states):
                worth = _worth(sweep, prices, l, s)
                _choose(
                    sweep,
                    grid,
                    work[l],
                    worth,
                    presence[l],
                    l,
                    s,
                    least[s],
                    chosen[i, s],
                    used[i, s],
                )
        elif sweep.what[i] == OPEN:
            for s in range(sweep.states):
                if s & bit:
                    least[s] = least[s ^ bit] + sweep.cost[i]
        else:
            for s in range(sweep.states):
                if s & bit:
                    for b in range(cells + 1):
                        if least[s, b] < least[s ^ bit, b]:
                            least[s ^ bit, b] = least[s, b]
                            chosen[i, s ^ bit, b] = bit
                    least[s] = np.inf
    s, b = 0, grid.low + int(np.argmin(least[0, grid.low :]))
    found: float = least[0, b]
    for i in range(shape[0] - 1, -1, -1):
        if sweep.what[i] == LAYER:
            column[sweep.which[i]] = chosen[i, s, b]
            b -= used[i, s, b]
        elif sweep.what[i] == OPEN:
            s &= ~(1 << sweep.which[i])
        else:
            s |= chosen[i, s, b]
    return found


@njit(cache=True)
def _choose(
    sweep: Sweep,
    grid: Grid,
    work: float,
    worth: float,
    presence: float,
    l: int,
    s: int,
    least: Array,
    chosen: Array,
    used: Array,
) -> None:
    """The best number of units of a layer, in every number of cells."""
    own = sweep.own[l]
    must = own >= 0 and s >> own & 1
    able = (
        s & sweep.need[l] == sweep.need[l] and (own < 0 or must) and grid.most[l] >= grid.first[l]
    )
    without = least.copy()
    least[:] = np.inf
    if able:
        # the first units, then one, two, four ... more: cells are rounded down for each
        first = grid.first[l]
        cells = int(first * work / grid.step)
        least[cells:] = without[: len(without) - cells] - first * worth - presence
        chosen[:], used[:] = first, cells
        rest, bundle = grid.most[l] - first, 1
        while rest > 0 and (worth > 0 or grid.low > 0):
            bundle = min(bundle, rest)
            _add(bundle, int(bundle * work / grid.step), bundle * worth, least, chosen, used)
            rest, bundle = rest - bundle, 2 * bundle
    if not must:
        for b in range(len(least)):
            if without[b] <= least[b]:
                least[b], chosen[b], used[b] = without[b], 0, 0


@njit(cache=True)
def _add(k: int, cells: int, worth: float, least: Array, chosen: Array, used: Array) -> None:
    for b in range(len(least) - 1, cells - 1, -1):
        value = least[b - cells] - worth
        if value < least[b]:
            least[b] = value
            chosen[b], used[b] = chosen[b - cells] + k, used[b - cells] + cells
