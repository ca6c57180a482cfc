"""Pipelines: which layers make a stage, on how many devices, over convex cuts of the graph of layers."""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


class Pipelines(Search):
    """The one method whose plans have stages and micro-batches."""

    has_stages = True

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.pipeline.method import search

        return search(graph, cluster, settings)
