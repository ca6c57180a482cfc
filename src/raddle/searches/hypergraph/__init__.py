"""Partitions layers over devices: the methods hypergraph-coarse, hypergraph-fine and hypergraph-mixed.

The model is that of the thesis (docs/papers.md). A *part* is what one device gets. Vertices of the
hypergraph are whole filters (*coarse*) or single input channels of filters (*fine*). A *net* (hyperedge) is
a set of vertices with a cost. There is a net for the output of each filter: it joins the filter with all
vertices that read this output. Its cost is the number of elements of the output. In the fine hypergraph
another net joins the channels of each filter, whose partial results are summed. The *volume* of
communication is the sum over nets of (parts in the net - 1) x cost. The third kind, *mixed*, is raddle's:
the search chooses for each layer an axis to split (samples, filters, input channels, height or width).

network          the graph as layers of filters and the feature maps between them
counts, cells    a coarse partition as counts of filters; a fine partition channel by channel
explicit         the hypergraphs with all vertices and nets
formats          files of hypergraphs and partitions for other partitioners
filter_layouts   from counts of filters to the tiles of a plan
partitioner      runs a method by its name
method           makes plans of the partitions: the search of the three methods
coarse, fine, mixed   the three solvers; modules with these prefixes are their helpers
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.hypergraph.partitioner_warmup import PARTITIONERS
from raddle.searches.jit_warmup import EVALUATOR
from raddle.searches.method import Search
from raddle.searches.settings import SearchResult, Settings


@dataclass(frozen=True)
class HypergraphSearch(Search):
    """A search that gives each device one part: of the filters (coarse), of the filters' input channels
    (fine), or of an axis chosen for each layer (mixed)."""

    grain: Literal["coarse", "fine", "mixed"]  # what is distributed over the parts (see above)
    # The numba functions of the fast simulation (simulation/fast) and of this package: they are compiled
    # before the search is timed.
    jit_functions = (EVALUATOR, PARTITIONERS)

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        """Returns the plan's tiles. Pins (tilings that the user fixes) are refused."""
        from raddle.searches.hypergraph.method import search

        if settings.pins:
            raise InputError(f"{self.name} cannot pin operators: use optcnn, flexflow or auto.")
        return search(graph, cluster, self.grain, settings)
