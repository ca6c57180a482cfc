"""`auto`: the best of all methods, improved from the best of them, within the devices' memory."""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


class Auto(Search):
    """Takes the plan, the sync and the pipeline that simulate fastest."""

    chooses_sync = True
    starts_from_others = True

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.auto.method import search

        return search(graph, cluster, settings)
