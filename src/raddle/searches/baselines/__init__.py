"""The named baselines: well-known plans without a search. Each is a function: (graph, cluster) -> tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.baselines import filters
from raddle.searches.baselines.data import data
from raddle.searches.baselines.layerwise import layerwise
from raddle.searches.baselines.model import model, owt
from raddle.searches.baselines.spatial import spatial
from raddle.searches.grids import Tiles
from raddle.searches.method import Method
from raddle.searches.plan_space import PlanSpace
from raddle.searches.settings import SearchResult, Settings

BASELINES: dict[str, Callable[[Graph, Cluster], Tiles]] = {
    "data": data,
    "model": model,
    "owt": owt,
    "layerwise": layerwise,
    "spatial": spatial,
    # Baselines of Eserol's thesis (filters.py).
    "filter-horizontal": filters.horizontal,
    "filter-incremental": filters.incremental,
    "channel-incremental": filters.channel_incremental,
}


def applicable_baselines(
    graph: Graph, cluster: Cluster, names: Iterable[str] = tuple(BASELINES)
) -> dict[str, Tiles]:
    """Returns the tiles of the named baselines that can be applied, by name.

    A baseline cannot be applied if, for example, there are too few samples.
    """
    tiles_by_name = {}
    for name in names:
        with suppress(InputError):
            tiles_by_name[name] = BASELINES[name](graph, cluster)
    return tiles_by_name


class Baseline(Method):
    """The method that gives the tiles of one of BASELINES, by its name."""

    def find(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        tiles = BASELINES[self.name](graph, cluster)
        if settings.pins:
            tiles = PlanSpace(graph, cluster, settings).with_pins(tiles)
        return SearchResult(tiles)
