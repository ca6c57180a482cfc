"""Plans that experts write by hand, by name: sharded data parallelism, tensor and context parallelism.

    fsdp      data parallelism with ZeRO-3: parameters, gradients and optimizer state are sharded
    zero2     data parallelism with ZeRO-2: gradients and optimizer state are sharded
    hsdp      fsdp within each node, copies of the shards on every node
    megatron  linear layers of transformer blocks split over devices of a node, samples over the others
    context   the sequence split over devices, samples over the others
    3d        stages under the schedule 1f1b, each with megatron inside

The first three set the sync kind, which is what makes them what they are. The degrees of the others are
chosen by simulation. Their plans are starts of `auto`.
"""

from __future__ import annotations

from dataclasses import dataclass

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.experts.mesh import SplitKind
from raddle.searches.experts.sharding import sharded_data
from raddle.searches.method import Method, Search
from raddle.searches.settings import SearchResult, Settings


class ShardedData(Method):
    """Data parallelism with a sync kind of its own."""

    sets_sync = True

    def find(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        return sharded_data(self.name, graph, cluster, settings)


@dataclass(frozen=True)
class SplitByDegrees(Search):
    """A plan that is split by a rule, with degrees that are chosen by simulation."""

    kind: SplitKind

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.experts.degrees import search

        return search(self.kind, graph, cluster, settings)


class ThreeD(Search):
    """Stages, tensor parallelism and data parallelism together (pipeline/three_d.py)."""

    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        from raddle.searches.pipeline.three_d import search

        return search(graph, cluster, settings)
