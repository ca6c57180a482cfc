"""Searches pipeline-parallel plans: the method `pipeline`. `Pipelines` is its entry in the list of methods.

method.py            the search itself: partitions, schedules, simulation of the most promising plans
request.py           the same with a schedule, stages or micro-batches that the user gives
layer_graph.py       groups operators into layers and estimates the costs of each layer
layers.py            the partitioners' input: layers with their costs, and a chain of devices
shortest_step.py     partitions layers for pipelines with a flush (dynamic_program.py, cap_search.py)
shortest_period.py   partitions layers for pipelines without a flush, as PipeDream does
ideals.py, cuts.py   all sets of layers that can run before a cut, and the bytes that cross the cut
pipedream_profiles.py   reads layers from a file of PipeDream's profiler
"""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


class Pipelines(Search):
    """The only method whose plans have stages and micro-batches."""

    has_stages = True  # the user may ask for a schedule, stages and micro-batches

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        """Return the fastest pipeline plan that fits in memory (method.py)."""
        from raddle.searches.pipeline.method import search

        return search(graph, cluster, settings)
