"""Finds the cheapest column at given prices: the pricing problem of column generation (lower_bound.py).

It serves a lower bound on the volume of *coarse* partitions, in which every filter is whole in one part (a
*part* is a device's share). A feature *map* consists of *pieces*: the units (filters) of one layer, then
those of the next. A *dense* reader of a map is a layer: a part that has units of it needs all units of the
map. An *elementwise* reader is an operator such as an add: a part that has unit i of it needs unit i of the
map (network.py). A *column* is the number of units (filters) of each layer in one part (counts.py). Its
cost is the elements of feature maps that the part receives, less the prices that it earns: one for each
unit that it has, and one for each layer of which it has a unit (the price of the layer's *presence*).
Dynamic programming finds the minimum: a *sweep* over the layers from the last to the first. The state of
the sweep is the work used so far, in *cells* (equal amounts of work), and one bit

    per map     whether the part has units of a dense reader of the map: if so, it pays for all units of the
                map, and each unit that it has itself saves its own elements
    per layer   that is read elementwise: whether the part has units of the layer

A bit is open only between the first and the last layer that depend on it. Three relaxations make the
result a lower bound: work is rounded down to whole cells; an elementwise reader pays only if the part has
no unit of the layer read; and readers far from their map are ignored if too many bits would be open at
once.
"""

# l, t: layers; v: map; s: values of the open bits, as an integer; b: number of cells used; k: units;
# m: the network as arrays (counts.py)

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.searches.hypergraph.counts import Array, CountModel

MAX_EFFORT = 300_000  # cells x layers x states: about 10 ms per column
MAX_OPEN_BITS = 6
OPEN, LAYER, CLOSE = 0, 1, 2  # kinds of steps: open a bit, choose the units of a layer, close a bit

# ("map", v) or ("layer", l) -> first and last layer between which the bit is open
Spans = dict[tuple[str, int], tuple[int, int]]


class Sweep(NamedTuple):
    """The steps of the sweep, and the costs of a unit that depend on bits.

    The gains of layer l are the entries gain_start[l] to gain_start[l + 1]; likewise elementwise costs.
    """

    step_kind: Array  # by step: OPEN, LAYER or CLOSE
    step_index: Array  # by step: the bit or the layer
    open_cost: Array  # by step: elements to pay if the opened bit is set
    presence_bit: Array  # by layer: the bit that says whether the part has units of it, or -1
    needed_bits: Array  # by layer, a mask: the part may have units only if these bits are set
    gain_start: Array
    gain_bit: Array
    gain: Array  # elements that a unit saves if gain_bit is set
    elementwise_start: Array
    elementwise_bits: Array  # a mask
    elementwise_cost: Array  # elements that a unit costs if none of elementwise_bits is set
    num_states: int  # values of s


class WorkGrid(NamedTuple):
    """The work of a part in whole cells, and limits on its units."""

    cells: int  # that fit into the part's capacity
    min_cells: int  # that the part uses at least
    cell_work: float  # work of one cell
    min_units: Array  # by layer: fewest units of a part that has any
    max_units: Array  # by layer: most units of a part


def cheapest_column(
    m: CountModel, sweep: Sweep, grid: WorkGrid, prices: Array, presence_prices: Array
) -> tuple[float, Array]:
    """Returns the minimum of received - prices . column - presence_prices . (column > 0), and its column.

    prices: per unit, by layer; presence_prices: by layer, once if the part has any units of it. Both are
    revenues of the part. received: elements that it receives.
    """
    column = np.zeros(m.num_layers, np.int64)
    least = _run_sweep(m.work, sweep, grid, prices.copy(), presence_prices.copy(), column)
    return float(least), column


def build_grid(m: CountModel, sweep: Sweep, capacity: float, all_capacity: float) -> WorkGrid:
    """Returns a grid for parts of this capacity; the work of a unit is nearly a multiple of a cell.

    all_capacity: of all parts together.
    """
    usual_cells = min(2400, max(200, MAX_EFFORT // (sweep.num_states * m.num_layers)))
    work = m.work[m.work > 0]
    # Candidates for the work of a cell: the usual one, and the work of a unit divided by 1 to 4
    cell_works = [capacity / usual_cells, *(w / i for w in np.unique(work) for i in range(1, 5))]
    cell_works = [
        w for w in cell_works if usual_cells / 2 <= capacity / w * (1 + 1e-9) <= 2 * usual_cells
    ]

    def rounding_loss(candidate: float) -> float:
        """Returns the work that is lost if the work of each unit is rounded down to cells."""
        return float(((work / candidate + 1e-6) % 1.0).sum() * candidate)

    cell_work = min(cell_works, key=rounding_loss) * (1 - 1e-9)
    max_units = np.minimum(m.units, np.floor(capacity / np.maximum(m.work, 1e-300) * (1 + 1e-12)))
    # This part needs the work that does not fit into all others, less what rounding down can hide.
    # _choose_units adds the units of a layer in bundles of 1, 2, 4, ...; each loses less than one cell. We
    # assume at most 14 bundles per layer.
    min_cells = (m.total_work - (all_capacity - capacity)) / cell_work - 14 * m.num_layers
    cells = int(capacity * (1 + 1e-12) / cell_work)
    return WorkGrid(
        cells,
        max(0, min(cells, int(min_cells))),
        cell_work,
        np.ones(m.num_layers, np.int64),
        max_units.astype(np.int64),
    )


def build_sweep(m: CountModel) -> Sweep:
    """Returns the sweep; ignores far readers until at most MAX_OPEN_BITS bits are open at any layer."""
    maps = [_RelaxedMap(m, v) for v in range(len(m.cost))]
    while True:
        spans: Spans = {}
        for key, (a, b) in (item for v in maps for item in v.spans().items()):
            first, last = spans.get(key, (a, b))  # two maps may need the same layer's bit
            spans[key] = min(first, a), max(last, b)
        open_bits = np.zeros(m.num_layers, np.int64)
        for first, last in spans.values():
            open_bits[first : last + 1] += 1
        if open_bits.max(initial=0) <= MAX_OPEN_BITS:
            return _build_steps(m, maps, spans)
        deepest = int(open_bits.argmax())  # the layer with the most open bits
        crossing = [v for v in maps if any(a <= deepest <= b for a, b in v.spans().values())]
        max(crossing, key=lambda v: v.length()).shorten()


class _RelaxedMap:
    """Map v with the readers that the relaxation counts: dense ones, and one elementwise one per piece."""

    def __init__(self, m: CountModel, v: int) -> None:
        self.number, self.cost = v, int(m.cost[v])
        self.pieces = [int(l) for l in m.piece_layer[m.piece_start[v] : m.piece_start[v + 1]]]
        self.dense = sorted(
            {int(t) for t in m.dense_layer[m.dense_start[v] : m.dense_start[v + 1]]}
        )
        entries = range(m.elementwise_start[v], m.elementwise_start[v + 1])
        # Number of a piece of the map -> the layer that reads it elementwise
        self.elementwise = {
            int(m.elementwise_piece[a]): int(m.elementwise_layer[a]) for a in entries
        }

    def spans(self) -> Spans:
        """Returns the spans of the map's bit and of the bits of layers that are read elementwise."""
        layer_spans = {}
        layers = [*self.pieces, *self.dense, *self.elementwise.values()]
        if self.dense:
            layer_spans["map", self.number] = (min(layers), max(layers))
        for i, t in self.elementwise.items():
            l = self.pieces[i]
            layer_spans["layer", l] = (min(l, t), max(l, t))
        return layer_spans

    def length(self) -> int:
        """Returns the number of layers that the longest span covers, less one."""
        return max(b - a for a, b in self.spans().values())

    def shorten(self) -> None:
        """Ignores the reader that is farthest from the map."""
        # Each reader: its layer, and the number of the piece that it reads elementwise; None: it is dense.
        readers = [(t, None) for t in self.dense] + [(t, i) for i, t in self.elementwise.items()]
        t, i = max(readers, key=lambda r: abs(r[0] - self.pieces[0]))
        if i is None:
            self.dense.remove(t)
        else:
            del self.elementwise[i]


def _build_steps(m: CountModel, maps: list[_RelaxedMap], spans: Spans) -> Sweep:
    """Builds the sweep: for each layer from the last on, open bits, choose units, close bits."""
    steps: list[tuple[int, int, int]] = []  # (kind, bit or layer, cost if the opened bit is set)
    # bit: the open bits by key of a span; bits_used: those that were ever open
    free_bits, bit, bits_used = list(range(MAX_OPEN_BITS))[::-1], {}, {}
    # For each layer: pairs (gain_bit, gain), and pairs (elementwise_bits, elementwise_cost) of Sweep
    gains: list[list[tuple[int, int]]] = [[] for _ in range(m.num_layers)]
    elementwise: list[list[tuple[int, int]]] = [[] for _ in range(m.num_layers)]
    needed_bits, presence_bit = np.zeros(m.num_layers, np.int64), np.full(m.num_layers, -1)
    for l in reversed(range(m.num_layers)):
        for key, (_, last) in spans.items():
            if last == l:
                bit[key] = bits_used[key] = free_bits.pop()
                v = maps[key[1]] if key[0] == "map" else None
                map_cost = v.cost * sum(int(m.units[i]) for i in v.pieces) if v else 0
                steps.append((OPEN, bit[key], map_cost))
        presence_bit[l] = bit.get(("layer", l), -1)
        for v in maps:
            if v.dense and l in v.dense:
                needed_bits[l] |= 1 << bit["map", v.number]
            if v.dense and l in v.pieces:
                gains[l].append((bit["map", v.number], v.cost * v.pieces.count(l)))
            for i, t in v.elementwise.items():
                if t == l:
                    free_if_any = 1 << bit["layer", v.pieces[i]]
                    free_if_any |= 1 << bit["map", v.number] if v.dense else 0
                    elementwise[l].append((free_if_any, v.cost))
        steps.append((LAYER, l, 0))
        for key, (first, _) in spans.items():
            if first == l:
                steps.append((CLOSE, bit[key], 0))
                free_bits.append(bit.pop(key))
    step_kind, step_index, open_cost = (
        np.array(column, np.int64) for column in zip(*steps, strict=True)
    )
    num_states = 1 << (1 + max(bits_used.values(), default=-1))
    return Sweep(
        step_kind,
        step_index,
        open_cost,
        presence_bit,
        needed_bits,
        *_flatten_pairs(gains),
        *_flatten_pairs(elementwise),
        num_states,
    )


def _flatten_pairs(lists: list[list[tuple[int, int]]]) -> tuple[Array, Array, Array]:
    """Returns where each list begins, and the first and the second entries of all pairs."""
    starts = np.cumsum([0, *(len(row) for row in lists)]).astype(np.int64)
    flat = [pair for entries in lists for pair in entries]
    return (
        starts,
        np.array([i for i, _ in flat], np.int64),
        np.array([c for _, c in flat], np.int64),
    )


@njit(cache=True)
def _unit_worth(sweep: Sweep, prices: Array, l: int, s: int) -> float:
    """Returns the price of a unit of layer l plus what it saves in state s, less what it costs there."""
    worth: float = prices[l]
    for i in range(sweep.gain_start[l], sweep.gain_start[l + 1]):
        if s >> sweep.gain_bit[i] & 1:
            worth += sweep.gain[i]
    for i in range(sweep.elementwise_start[l], sweep.elementwise_start[l + 1]):
        if s & sweep.elementwise_bits[i] == 0:
            worth -= sweep.elementwise_cost[i]
    return worth


@njit(cache=True)
def _run_sweep(
    work: Array, sweep: Sweep, grid: WorkGrid, prices: Array, presence_prices: Array, column: Array
) -> float:
    """Runs the dynamic program; writes the cheapest column to `column` and returns its cost."""
    cells = grid.cells
    shape = (len(sweep.step_kind), sweep.num_states, cells + 1)
    # least[s, b]: the lowest cost so far in state s with b cells used
    # chosen, cells_used: to trace back. Of a LAYER step: units and cells; of a CLOSE step: chosen is the
    # bit if it was set, else 0.
    least = np.full(shape[1:], np.inf)
    chosen, cells_used = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    least[0, 0] = 0.0
    for i in range(shape[0]):
        bit = 1 << sweep.step_index[i]
        if sweep.step_kind[i] == LAYER:
            l = sweep.step_index[i]
            for s in range(sweep.num_states):
                worth = _unit_worth(sweep, prices, l, s)
                _choose_units(
                    sweep,
                    grid,
                    work[l],
                    worth,
                    presence_prices[l],
                    l,
                    s,
                    least[s],
                    chosen[i, s],
                    cells_used[i, s],
                )
        elif sweep.step_kind[i] == OPEN:
            for s in range(sweep.num_states):
                if s & bit:
                    least[s] = least[s ^ bit] + sweep.open_cost[i]
        else:
            for s in range(sweep.num_states):
                if s & bit:
                    for b in range(cells + 1):
                        if least[s, b] < least[s ^ bit, b]:
                            least[s ^ bit, b] = least[s, b]
                            chosen[i, s ^ bit, b] = bit
                    least[s] = np.inf
    s, b = 0, grid.min_cells + int(np.argmin(least[0, grid.min_cells :]))
    least_cost: float = least[0, b]
    for i in range(shape[0] - 1, -1, -1):
        if sweep.step_kind[i] == LAYER:
            column[sweep.step_index[i]] = chosen[i, s, b]
            b -= cells_used[i, s, b]
        elif sweep.step_kind[i] == OPEN:
            s &= ~(1 << sweep.step_index[i])
        else:
            s |= chosen[i, s, b]
    return least_cost


@njit(cache=True)
def _choose_units(
    sweep: Sweep,
    grid: WorkGrid,
    work: float,
    worth: float,
    presence_price: float,
    l: int,
    s: int,
    least: Array,
    chosen: Array,
    cells_used: Array,
) -> None:
    """Chooses the best number of units of layer l in state s, for every number of cells.

    work, worth: of one unit; least, chosen, cells_used: by number of cells, changed in place.
    """
    presence_bit = sweep.presence_bit[l]
    must_be_present = presence_bit >= 0 and s >> presence_bit & 1
    may_be_present = (
        s & sweep.needed_bits[l] == sweep.needed_bits[l]
        and (presence_bit < 0 or must_be_present)
        and grid.max_units[l] >= grid.min_units[l]
    )
    without = least.copy()
    least[:] = np.inf
    if may_be_present:
        # First min_units, then bundles of 1, 2, 4, ... units; the cells of each are rounded down.
        first = grid.min_units[l]
        cells = int(first * work / grid.cell_work)
        least[cells:] = without[: len(without) - cells] - first * worth - presence_price
        chosen[:], cells_used[:] = first, cells
        remaining, bundle = grid.max_units[l] - first, 1
        while remaining > 0 and (worth > 0 or grid.min_cells > 0):
            bundle = min(bundle, remaining)
            _add_bundle(
                bundle,
                int(bundle * work / grid.cell_work),
                bundle * worth,
                least,
                chosen,
                cells_used,
            )
            remaining, bundle = remaining - bundle, 2 * bundle
    if not must_be_present:
        for b in range(len(least)):
            if without[b] <= least[b]:
                least[b], chosen[b], cells_used[b] = without[b], 0, 0


@njit(cache=True)
def _add_bundle(
    k: int, cells: int, worth: float, least: Array, chosen: Array, cells_used: Array
) -> None:
    """Adds a bundle of k units, with their cells and their worth, wherever that lowers the cost."""
    for b in range(len(least) - 1, cells - 1, -1):
        value = least[b - cells] - worth
        if value < least[b]:
            least[b] = value
            chosen[b], cells_used[b] = chosen[b - cells] + k, cells_used[b - cells] + cells
