"""Partitions a graph by the name of a method, and counts the work and communication of the result.

A *part* is a device's share. A *coarse* partition distributes whole filters (units of layers) and is given
by counts (counts.py); a *fine* one distributes cells, which are single input channels of filters
(cells.py); a *mixed* one splits each layer along an axis that the solver chooses (mixed.py). The *volume*
is the elements that cross parts in a forward.

`raddle partition` makes tables of the results (table_row); the hypergraph-* searches make plans of them.
"""

# l: layer; p: part; v: feature map; x[l, p]: how many filters of layer l part p has

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.program import Move, message_bytes
from raddle.searches.baselines.model import fully_connected
from raddle.searches.grids import Tiles
from raddle.searches.hypergraph import naive
from raddle.searches.hypergraph.cells import Cells, cell_tiles, cell_work, count_traffic
from raddle.searches.hypergraph.counts import (
    CountModel,
    build_count_model,
    part_work,
    units_received,
)
from raddle.searches.hypergraph.filter_layouts import (
    layout_of_owners,
    layouts_of_counts,
    place_operators,
)
from raddle.searches.hypergraph.network import LayerNetwork, build_network, merge_layers
from raddle.searches.purposes import bytes_by_purpose
from raddle.searches.settings import OnProgress
from raddle.searches.stopwatch import Clock

Array = np.ndarray

NAIVE_METHODS = {
    "layerwise": naive.layerwise,
    "filter-horizontal": naive.horizontal,
    "filter-incremental": naive.incremental,
}  # functions from a model and a number of parts to counts [layer, part]


@dataclass(frozen=True)
class PartitionRequest:
    """The options of a partition."""

    parts: int
    epsilon: float = 0.1  # a part may have (1 + epsilon) x its share of the work
    budget: float = 10.0  # seconds for a solver
    seed: int = 0
    shares: Sequence[float] | None = None  # of the work, by part, in any unit; None: equal shares
    on_progress: OnProgress = field(default=lambda step: None, repr=False)
    # The clock of a search that has begun, which then gives the budget; None: it begins with the partition.
    clock: Clock | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class PartitionResult:
    """A partition as tiles of a plan, with its work and its communication."""

    method: str
    parts: int
    tiles: Tiles
    work: Array  # by part, in the unit of Partitioner's `work`; of a mixed partition always FLOPs
    sent_elements: Mapping[str, int]  # in a forward, by name of the value that is sent
    received_elements: Array  # in a forward, by part
    volume_bytes: int  # in a step: forward, backward and synchronisation of parameters
    # Of a fine partition: the tiles that sum the partial results of filters
    sums: Tiles = field(default_factory=dict)
    lower_bound: float | None = None  # on the volume of any coarse partition, in elements
    seconds: float = 0.0  # that the method took

    @property
    def volume(self) -> int:
        """Elements that cross parts in a forward."""
        return sum(self.sent_elements.values())

    @property
    def imbalance(self) -> float:
        """The work of the largest part divided by the average."""
        return float(self.work.max() / self.work.mean())


class Partitioner:
    """Partitions one graph by any method.

    work: of each layer, which the methods balance over the parts; by default the FLOPs of a forward.
    connected_as_one: each fully connected layer is one unit, as in the thesis (docs/papers.md).
    """

    def __init__(self, graph: Graph, work: Any = None, *, connected_as_one: bool = False) -> None:
        self.graph = graph
        layer_network = build_network(graph)
        if not layer_network.layers or not layer_network.maps:
            raise InputError(f"'{graph.name}' has no layers of filters that read each other.")
        self.network: LayerNetwork = (
            merge_layers(layer_network, fully_connected(graph))
            if connected_as_one
            else layer_network
        )
        self.model: CountModel = build_count_model(self.network, work)

    def partition(self, method: str, request: PartitionRequest) -> PartitionResult:
        """Runs a method of METHODS. The modules of a solver are imported when it runs: that is slow."""
        clock = request.clock or Clock(request.budget)
        started_at = clock.seconds
        if request.parts < 1:
            raise InputError(f"{request.parts} parts cannot be made: ask for at least one.")
        with clock.stopwatch.paused_for_jit():
            result = self._partition(method, replace(request, clock=clock))
        return replace(result, seconds=clock.seconds - started_at)

    def _partition(self, method: str, request: PartitionRequest) -> PartitionResult:
        """Runs a method; the request has a clock that runs."""
        if method in NAIVE_METHODS:
            return self.result_from_counts(method, NAIVE_METHODS[method](self.model, request.parts))
        if method in SOLVERS:
            return SOLVERS[method](self, request)
        # channel-incremental
        cells = naive.channel_incremental(self.network, self.model, request.parts)
        return self.result_from_cells(method, cells, request.parts)

    # -- what a partition costs --------------------------------------------------------------------

    def result_from_counts(self, method: str, x: Array) -> PartitionResult:
        """Returns the result for a coarse partition given as counts x[l, p]."""
        m, parts = self.model, x.shape[1]
        # units, sent: [map, part] units and elements that the part receives; m.cost: elements of one unit
        units = np.array(
            [
                [units_received(m, np.ascontiguousarray(x[:, p]), v) for p in range(parts)]
                for v in range(len(m.cost))
            ]
        )
        sent = units * m.cost[:, None]
        sent_elements = {
            v.name: int(n) for v, n in zip(self.network.maps, sent.sum(axis=1), strict=True) if n
        }
        return PartitionResult(
            method, parts,
            place_operators(self.graph, self.network, layouts_of_counts(self.network, x)),
            part_work(m, x), sent_elements, sent.sum(axis=0), self._bytes_both_ways(sent_elements),
        )  # fmt: skip

    def result_from_filters(
        self, method: str, owners: Sequence[Array], parts: int
    ) -> PartitionResult:
        """Returns the result for a coarse partition given as the part of every filter, by layer.

        It is counted as a fine partition in which all cells of a filter are in the filter's part.
        """
        cells = [
            np.repeat(filter_owners[:, None], size, axis=1)
            for filter_owners, size in zip(owners, self._channel_counts(), strict=True)
        ]
        # traffic.sent: elements by name of the value; traffic.received: elements by part
        traffic = count_traffic(self.network, Cells(cells, owners), parts)
        work = sum(
            (
                np.bincount(layer_owners, minlength=parts) * self.model.work[l]
                for l, layer_owners in enumerate(owners)
            ),
            np.zeros(parts),
        )
        tiles = place_operators(
            self.graph,
            self.network,
            [layout_of_owners(owners_of_layer) for owners_of_layer in owners],
        )
        return PartitionResult(
            method,
            parts,
            tiles,
            work,
            traffic.sent,
            traffic.received,
            self._bytes_both_ways(traffic.sent),
        )

    def result_from_cells(self, method: str, cells: Cells, parts: int) -> PartitionResult:
        """Returns the result for a fine partition, given by the part of every cell."""
        traffic = count_traffic(self.network, cells, parts)
        tiles, sums = cell_tiles(self.graph, self.network, cells)
        work = cell_work(self.network, self.model.work, cells, parts)
        return PartitionResult(
            method,
            parts,
            tiles,
            work,
            traffic.sent,
            traffic.received,
            self._bytes_both_ways(traffic.sent),
            sums,
        )

    def _channel_counts(self) -> list[int]:
        """Returns, for each layer, how many input channels a filter has."""
        from raddle.searches.hypergraph.explicit import channel_count

        return [channel_count(self.network, l) for l in range(len(self.network.layers))]

    def _bytes_both_ways(self, sent_elements: Mapping[str, int]) -> int:
        """Returns the bytes of a step: every value that is sent forward has a gradient that is sent back.

        Parameters add nothing, because each is in one part only.
        """
        itemsize = self.graph.values[self.network.maps[0].name].dtype.itemsize
        return 2 * itemsize * sum(sent_elements.values())

    # -- solvers -----------------------------------------------------------------------------------

    def coarse(self, request: PartitionRequest) -> PartitionResult:
        """Finds a coarse partition of little volume, with a lower bound (coarse.py)."""
        from raddle.searches.hypergraph import coarse

        solution = coarse.solve(
            self.model, request.parts, epsilon=request.epsilon, clock=request.clock, seed=request.seed,
            shares=request.shares, on_progress=request.on_progress,
        )  # fmt: skip
        return replace(
            self.result_from_counts("coarse", solution.x), lower_bound=solution.lower_bound
        )

    def fine(self, request: PartitionRequest) -> PartitionResult:
        """Finds a fine partition of little volume (fine.py).

        The coarse problem is solved first: a coarse partition is also a fine one, and a good start.
        """
        from raddle.searches.hypergraph import coarse, fine

        assert request.clock is not None
        start = coarse.solve(
            self.model, request.parts, epsilon=request.epsilon, clock=request.clock.part(0.4),
            seed=request.seed, shares=request.shares, on_progress=request.on_progress,
        )  # fmt: skip
        solution = fine.solve(
            self.network, self.model, request.parts, epsilon=request.epsilon, clock=request.clock,
            seed=request.seed, starts=[start.x], shares=request.shares, on_progress=request.on_progress,
        )  # fmt: skip
        return self.result_from_cells(
            "fine", fine.to_cells(self.network, solution.partition), request.parts
        )

    def mixed(self, request: PartitionRequest) -> PartitionResult:
        """Finds a mixed partition with few bytes (mixed.py)."""
        from raddle.searches.hypergraph import mixed

        solution = mixed.solve(
            self.graph, request.parts, epsilon=request.epsilon, clock=request.clock, seed=request.seed,
            shares=request.shares, on_progress=request.on_progress,
        )  # fmt: skip
        return self.result_from_tiles(
            "mixed", solution.tiles, np.asarray(solution.work), request.parts
        )

    def result_from_tiles(
        self, method: str, tiles: Tiles, work: Array, parts: int
    ) -> PartitionResult:
        """Returns the result for any tiles, counted from the lowered program.

        bn="local": statistics of batch norms are not synchronised.
        """
        program = lower(self.graph, Plan(tiles, parts, bn="local"))
        sent_elements: dict[str, int] = {}
        received = np.zeros(parts, np.int64)
        for i in program.instructions:
            if isinstance(i, Move) and i.kind.is_forward:
                for message in i.messages:
                    elements = message_bytes(program, i, message) // program.element_bytes(i.value)
                    sent_elements[i.value] = sent_elements.get(i.value, 0) + elements
                    received[message.target] += elements
        volume = sum(bytes_by_purpose(program).values())  # in bytes, of a whole step
        return PartitionResult(method, parts, tiles, work, sent_elements, received, volume)


SOLVERS: dict[str, Callable[[Partitioner, PartitionRequest], PartitionResult]] = {
    "coarse": Partitioner.coarse,
    "fine": Partitioner.fine,
    "mixed": Partitioner.mixed,
}  # methods that use JIT-compiled functions
METHODS = (*NAIVE_METHODS, "channel-incremental", *SOLVERS)


def table_row(result: PartitionResult, epsilon: float) -> dict[str, Any]:
    """Returns one row of a table like those of the thesis; "heaviest" is the value that is sent most."""
    heaviest = max(result.sent_elements, key=lambda name: result.sent_elements[name], default=None)
    average = result.volume / result.parts  # elements that a part receives on average
    work = result.work
    return {
        "method": result.method,
        "parts": result.parts,
        "work_max": float(work.max()),
        "work_min": float(work.min()),
        "work_avg": float(work.mean()),
        "max_over_min": float(work.max() / work.min()) if work.min() > 0 else None,
        "imbalance": result.imbalance,
        "balanced": result.imbalance <= 1 + epsilon + 1e-9,
        "volume_elements": result.volume,
        "volume_bytes": result.volume_bytes,
        "heaviest": heaviest,
        "heaviest_elements": result.sent_elements[heaviest] if heaviest else 0,
        "average_elements": average,
        "heaviest_over_average": result.sent_elements[heaviest] / average if heaviest else None,
        "received_elements": result.received_elements.tolist(),
        "lower_bound_elements": result.lower_bound,
        "seconds": result.seconds,
    }
