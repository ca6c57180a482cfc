"""OptCNN: the configurations of all layers with the least sum of costs, by dynamic programming."""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


class OptCNN(Search):
    """The paper does not split sums."""

    splits_sums = False

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.optcnn.optima import search

        return search(graph, cluster, settings)
