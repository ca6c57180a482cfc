"""Partitions of filters and channels: a network of layers, its hypergraphs, solvers, and plans from parts.

A thesis's model: vertices are filters (coarse) or channels of filters (fine), a net joins what needs a map,
and the volume of communication is the sum of (parts in a net - 1) x cost over all nets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.hypergraph.jit_warmup import PARTITIONERS
from raddle.searches.jit_warmup import EVALUATOR
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


@dataclass(frozen=True)
class HypergraphSearch(Search):
    """Parts of filters, of their channels, or of any letters layer by layer (mixed); a part a device."""

    grain: Literal["coarse", "fine", "mixed"]
    jit_functions = (EVALUATOR, PARTITIONERS)

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.hypergraph.method import search

        if settings.pins:
            raise InputError(f"{self.name} leaves nothing pinned: use optcnn, flexflow or auto.")
        return search(graph, cluster, self.grain, settings)
