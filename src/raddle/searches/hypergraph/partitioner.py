"""Partitions by name of a method, and what they cost: one mechanism for tables and for plans."""

# l: layer; p: part; v: map

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
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
from raddle.searches.hypergraph.layouts import layout_of_owners, layouts_of_counts, place_operators
from raddle.searches.hypergraph.network import LayerNetwork, build_network, merge_layers
from raddle.searches.purposes import bytes_by_purpose
from raddle.searches.settings import OnProgress

Array = np.ndarray

COUNTED = {
    "layerwise": naive.layerwise,
    "filter-horizontal": naive.horizontal,
    "filter-incremental": naive.incremental,
}


@dataclass(frozen=True)
class Asked:
    """What a partition is asked for."""

    parts: int
    epsilon: float = 0.1
    budget: float = 10.0
    seed: int = 0
    shares: Sequence[float] | None = None  # of parts, where they are not equal
    heard: OnProgress = field(default=lambda step: None, repr=False)


@dataclass(frozen=True)
class Answer:
    """A partition, its work by part, and what crosses parts, in elements of a forward."""

    method: str
    parts: int
    tiles: Tiles
    work: Array
    of: Mapping[str, int]  # by what is sent
    received: Array  # by part
    volume_bytes: int  # forward, backward and parameters' sums
    sums: Tiles = field(default_factory=dict)
    lower_bound: float | None = None
    seconds: float = 0.0

    @property
    def volume(self) -> int:
        return sum(self.of.values())

    @property
    def imbalance(self) -> float:
        return float(self.work.max() / self.work.mean())


class Partitioner:
    """A graph as layers, with the work that is balanced."""

    def __init__(self, graph: Graph, work: Any = None, *, connected_as_one: bool = False) -> None:
        self.graph = graph
        found = build_network(graph)
        if not found.layers or not found.maps:
            raise InputError(f"'{graph.name}' has no layers of filters that read each other.")
        self.network: LayerNetwork = (
            merge_layers(found, fully_connected(graph)) if connected_as_one else found
        )
        self.model: CountModel = build_count_model(self.network, work)

    def answer(self, method: str, asked: Asked) -> Answer:
        """The partition of a method; the solvers are imported with the first that needs them."""
        begun = perf_counter()
        if asked.parts < 1:
            raise InputError(f"{asked.parts} parts cannot be made: ask for at least one.")
        if method in COUNTED:
            found = self.counted(method, COUNTED[method](self.model, asked.parts))
        elif method in SOLVED:
            found = SOLVED[method](self, asked)
        else:
            cells = naive.channel_incremental(self.network, self.model, asked.parts)
            found = self.spelt(method, cells, asked.parts)
        return replace(found, seconds=perf_counter() - begun)

    # -- what a partition costs --------------------------------------------------------------------

    def counted(self, method: str, x: Array) -> Answer:
        """Of counts x[l, p]."""
        m, parts = self.model, x.shape[1]
        units = np.array(
            [
                [units_received(m, np.ascontiguousarray(x[:, p]), v) for p in range(parts)]
                for v in range(len(m.cost))
            ]
        )
        sent = units * m.cost[:, None]
        of = {v.name: int(n) for v, n in zip(self.network.maps, sent.sum(axis=1), strict=True) if n}
        return Answer(
            method, parts,
            place_operators(self.graph, self.network, layouts_of_counts(self.network, x)),
            part_work(m, x), of, sent.sum(axis=0), self._both_ways(of),
        )  # fmt: skip

    def filters(self, method: str, owners: Sequence[Array], parts: int) -> Answer:
        """Of the part of every filter, by layer: as cells that all lie where their filter does."""
        cells = [
            np.repeat(own[:, None], size, axis=1)
            for own, size in zip(owners, self._sizes(), strict=True)
        ]
        sent = count_traffic(self.network, Cells(cells, owners), parts)
        work = sum(
            (
                np.bincount(own, minlength=parts) * self.model.work[l]
                for l, own in enumerate(owners)
            ),
            np.zeros(parts),
        )
        tiles = place_operators(self.graph, self.network, [layout_of_owners(own) for own in owners])
        return Answer(
            method, parts, tiles, work, sent.sent, sent.received, self._both_ways(sent.sent)
        )

    def spelt(self, method: str, cells: Cells, parts: int) -> Answer:
        """Of cells."""
        sent = count_traffic(self.network, cells, parts)
        tiles, sums = cell_tiles(self.graph, self.network, cells)
        work = cell_work(self.network, self.model.work, cells, parts)
        return Answer(
            method, parts, tiles, work, sent.sent, sent.received, self._both_ways(sent.sent), sums
        )

    def _sizes(self) -> list[int]:
        from raddle.searches.hypergraph.explicit import channel_count

        return [channel_count(self.network, l) for l in range(len(self.network.layers))]

    def _both_ways(self, of: Mapping[str, int]) -> int:
        """Every map and every sum has a gradient, which goes back; parameters lie in one part."""
        width = self.graph.values[self.network.maps[0].name].dtype.itemsize
        return 2 * width * sum(of.values())

    # -- solvers -----------------------------------------------------------------------------------

    def coarse(self, asked: Asked) -> Answer:
        from raddle.searches.hypergraph import coarse

        found = coarse.solve(
            self.model, asked.parts, epsilon=asked.epsilon, budget=asked.budget, seed=asked.seed,
            shares=asked.shares, on_progress=asked.heard,
        )  # fmt: skip
        return replace(self.counted("coarse", found.x), lower_bound=found.lower_bound)

    def fine(self, asked: Asked) -> Answer:
        """Starts from a coarse partition, which is a fine one, too."""
        from raddle.searches.hypergraph import coarse, fine

        begun = perf_counter()
        start = coarse.solve(
            self.model, asked.parts, epsilon=asked.epsilon, budget=0.4 * asked.budget,
            seed=asked.seed, shares=asked.shares, on_progress=asked.heard,
        )  # fmt: skip
        left = max(0.1, asked.budget - (perf_counter() - begun))
        found = fine.solve(
            self.network, self.model, asked.parts, epsilon=asked.epsilon, budget=left,
            seed=asked.seed, starts=[start.x], shares=asked.shares, on_progress=asked.heard,
        )  # fmt: skip
        return self.spelt("fine", fine.to_cells(self.network, found.partition), asked.parts)

    def mixed(self, asked: Asked) -> Answer:
        from raddle.searches.hypergraph import mixed

        found = mixed.solve(
            self.graph, asked.parts, epsilon=asked.epsilon, budget=asked.budget, seed=asked.seed,
            shares=asked.shares, heard=asked.heard,
        )  # fmt: skip
        return self.tiled("mixed", found.tiles, np.asarray(found.work), asked.parts)

    def tiled(self, method: str, tiles: Tiles, work: Array, parts: int) -> Answer:
        """Of any tiles: what their lowered program sends; losses' and norms' sums are left out."""
        program = lower(self.graph, Plan(tiles, parts, bn="local"))
        of: dict[str, int] = {}
        received = np.zeros(parts, np.int64)
        for i in program.instructions:
            if isinstance(i, Move) and i.kind.is_forward:
                for message in i.messages:
                    elements = message_bytes(program, i, message) // program.element_bytes(i.value)
                    of[i.value] = of.get(i.value, 0) + elements
                    received[message.target] += elements
        volume = sum(bytes_by_purpose(program).values())
        return Answer(method, parts, tiles, work, of, received, volume)


SOLVED: dict[str, Callable[[Partitioner, Asked], Answer]] = {
    "coarse": Partitioner.coarse,
    "fine": Partitioner.fine,
    "mixed": Partitioner.mixed,
}  # by what is compiled
METHODS = (*COUNTED, "channel-incremental", *SOLVED)


def row(found: Answer, epsilon: float) -> dict[str, Any]:
    """A line of a table as the thesis has them; the heaviest is the map that most is sent of."""
    heaviest = max(found.of, key=lambda name: found.of[name], default=None)
    average = found.volume / found.parts
    work = found.work
    return {
        "method": found.method,
        "parts": found.parts,
        "work_max": float(work.max()),
        "work_min": float(work.min()),
        "work_avg": float(work.mean()),
        "max_over_min": float(work.max() / work.min()) if work.min() > 0 else None,
        "imbalance": found.imbalance,
        "balanced": found.imbalance <= 1 + epsilon + 1e-9,
        "volume_elements": found.volume,
        "volume_bytes": found.volume_bytes,
        "heaviest": heaviest,
        "heaviest_elements": found.of[heaviest] if heaviest else 0,
        "average_elements": average,
        "heaviest_over_average": found.of[heaviest] / average if heaviest else None,
        "received_elements": found.received.tolist(),
        "lower_bound_elements": found.lower_bound,
        "seconds": found.seconds,
    }
