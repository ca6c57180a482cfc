"""The method `flexflow`: Markov chain Monte Carlo search over plans, which a fast simulation times."""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


class FlexFlow(Search):
    """Several Markov chains, which start from data parallelism, OptCNN's optima and expert plans."""

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.flexflow.method import search

        return search(graph, cluster, settings)
