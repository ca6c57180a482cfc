"""The method `optcnn`: finds the configurations of all layers with the least total cost, exactly."""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


class OptCNN(Search):
    """OptCNN's search. By default it splits no summed dimensions, as in the paper."""

    splits_sums = False

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.optcnn.optima import search

        return search(graph, cluster, settings)
