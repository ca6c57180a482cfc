"""Partition the filters of a model as a hypergraph, and write the hypergraph for other partitioners.

`raddle partition` shows `partition_table`; `raddle export` writes `hypergraph` to a file. A vertex of the
coarse hypergraph is a filter; a vertex of the fine one is one input channel of a filter. "Coarse" and
"fine" are called the grain. A net joins a filter with all vertices that read its output
(searches/hypergraph/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raddle import clusters
from raddle.api.costs import load_optional_profile
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.hypergraph import explicit
from raddle.searches.hypergraph.coarse import solve as solve_coarse
from raddle.searches.hypergraph.explicit import Hypergraph
from raddle.searches.hypergraph.formats import FORMATS, write_hypergraph
from raddle.searches.hypergraph.layer_work import layer_work
from raddle.searches.hypergraph.partitioner import (
    METHODS,
    Partitioner,
    PartitionRequest,
    PartitionResult,
    table_row,
)

__all__ = [
    "FORMATS", "GRAINS", "METHODS", "Hypergraph", "PartitionRequest", "PartitionResult", "Partitioner",
    "build_partitioner", "check_export", "check_methods", "hypergraph", "layer_work", "partition_table",
    "solve_coarse", "write_hypergraph",
]  # fmt: skip

# Functions that build the hypergraph, by grain.
GRAINS = {"coarse": explicit.coarse, "fine": explicit.fine}


def check_methods(names: Sequence[str]) -> None:
    """Raise InputError for a method that does not exist."""
    for name in names:
        if name not in METHODS:
            raise InputError(f"no method '{name}': choose {', '.join(METHODS)}.")


def check_export(file_format: str, grain: str) -> None:
    """Raise InputError for a format or a grain that does not exist."""
    if file_format not in FORMATS:
        raise InputError(f"no format '{file_format}': choose {' or '.join(FORMATS)}.")
    if grain not in GRAINS:
        raise InputError(f"the grain is '{grain}': choose {' or '.join(GRAINS)}.")


def build_partitioner(
    graph: Graph,
    weights: str,
    *,
    connected_as_one: bool = False,
    cluster: str = "p100:1x1",
    profile: str | None = None,
) -> Partitioner:
    """Return a partitioner of a graph that balances the work named by `weights`.

    The method mixed always balances the FLOPs of a forward, and splits fully connected layers too.
    weights: "flops"; "time" (seconds of forward and backward on the cluster's first device, measured where
    the profile has the operator); "both" (the mean of a layer's fraction of all FLOPs and its fraction of
    the whole time); or a JSON file with the work of each layer. connected_as_one: each fully connected
    layer is one vertex, as in Eserol's thesis (docs/papers.md).
    """
    by_flops = Partitioner(graph, connected_as_one=connected_as_one)
    if weights == "flops":
        return by_flops
    device = clusters.cluster(cluster).devices[0]
    work = layer_work(graph, by_flops.network, weights, device, load_optional_profile(profile))
    return Partitioner(graph, work, connected_as_one=connected_as_one)


def partition_table(
    partitioner: Partitioner,
    methods: Sequence[str],
    counts: Sequence[int],
    *,
    epsilon: float = 0.1,
    budget: float = 10.0,
    seed: int = 0,
    on_progress: Callable[[Mapping[str, Any]], None] = lambda step: None,
) -> list[dict[str, Any]]:
    """Return one row per method and number of parts (`counts`), with work and communication.

    epsilon: allowed imbalance; 0.1 lets a part have 10 % more work than the average. budget: seconds for
    each of the methods coarse, fine and mixed. If a combination is impossible, its row has an `error`
    instead of numbers; if there is no other combination, InputError is raised.
    """
    cases = [(name, count) for name in methods for count in counts]
    rows = []
    for done, (name, count) in enumerate(cases):
        on_progress({"step": f"{name} in {count}", "done": done, "of": len(cases)})
        request = PartitionRequest(count, epsilon=epsilon, budget=budget, seed=seed)
        try:
            columns = table_row(partitioner.partition(name, request), epsilon)
        except InputError as error:
            if len(cases) == 1:
                raise
            columns = {"method": name, "parts": count, "error": str(error)}
        rows.append({"batch": partitioner.graph.batch, "epsilon": epsilon, **columns})
    return rows


def hypergraph(partitioner: Partitioner, grain: str) -> Hypergraph:
    """Return the hypergraph with all vertices and nets. grain: "coarse" or "fine"."""
    # network: layers of filters and the feature maps between them; model: work and volumes as arrays
    return GRAINS[grain](partitioner.network, partitioner.model)
