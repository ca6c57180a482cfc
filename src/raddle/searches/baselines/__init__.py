"""The named baselines: what people do without a search, each a function from graph and cluster to tiles."""

from __future__ import annotations

from collections.abc import Callable

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.baselines import filters
from raddle.searches.baselines.data import data
from raddle.searches.baselines.layerwise import layerwise
from raddle.searches.baselines.model import model, owt
from raddle.searches.baselines.spatial import spatial
from raddle.searches.placing import Tiles

METHODS: dict[str, Callable[[Graph, Cluster], Tiles]] = {
    "data": data,
    "model": model,
    "owt": owt,
    "layerwise": layerwise,
    "spatial": spatial,
    "filter-horizontal": filters.horizontal,
    "filter-incremental": filters.incremental,
    "channel-incremental": filters.channel_incremental,
}
