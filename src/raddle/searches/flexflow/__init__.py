"""FlexFlow: Markov chain Monte Carlo, with proposals judged by a fast simulation."""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


class FlexFlow(Search):
    """Several chains, from data parallelism, OptCNN's optima and experts' plans."""

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.flexflow.method import search

        return search(graph, cluster, settings)
