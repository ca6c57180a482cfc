"""The method `auto`: tries all methods, improves the best plans, and takes the fastest that fits memory."""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


class Auto(Search):
    """Chooses the plan, the sync kind and the pipeline with the fastest simulated step."""

    chooses_sync = True
    starts_from_others = True  # in a comparison, the plans of the methods before it are starts

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.auto.method import search

        return search(graph, cluster, settings)
