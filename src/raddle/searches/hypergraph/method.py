"""Searches the plans of the hypergraph-* methods, and makes plans of files of other partitioners.

A *part* is what one device gets. A *coarse* partition distributes whole filters; a *fine* one distributes
cells, which are single input channels of filters (cells.py), and chooses where a filter's partial *sums*
are added; a *mixed* one splits each layer along an axis that the search chooses.
"""

from __future__ import annotations

import pathlib

from raddle.clusters import Cluster
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.searches.hypergraph.cells import Cells, partition_from_vector
from raddle.searches.hypergraph.formats import read_partition
from raddle.searches.hypergraph.partitioner import Partitioner, PartitionRequest, PartitionResult
from raddle.searches.operator_times import device_speeds
from raddle.searches.settings import SearchResult, Settings


def search(graph: Graph, cluster: Cluster, grain: str, settings: Settings) -> SearchResult:
    """Gives each device one part; a faster device gets a larger share of the work.

    grain: "coarse", "fine" or "mixed".
    """
    if settings.proposals is not None:
        raise InputError(
            f"hypergraph-{grain} makes no proposals that could be counted: give it a budget in seconds."
        )
    # epsilon: a part may have (1 + epsilon) x its share of the work
    request = PartitionRequest(
        len(cluster.devices), epsilon=settings.epsilon, budget=settings.budget, seed=settings.seed,
        shares=None if cluster.homogeneous else device_speeds(graph, cluster),
        on_progress=settings.on_progress, clock=settings.running_clock,
    )  # fmt: skip
    if grain == "mixed":
        return _search_mixed(graph, cluster, request, settings)
    return _search_result(Partitioner(graph).partition(grain, request))


def _search_mixed(
    graph: Graph, cluster: Cluster, request: PartitionRequest, settings: Settings
) -> SearchResult:
    """Returns the tiles of a mixed partition.

    The search minimises the bytes sent for half of the budget. From that partition on it minimises the
    simulated step time for the other half.
    """
    from raddle.searches.hypergraph.mixed import solve
    from raddle.searches.hypergraph.mixed_step_time import improve_step_time

    clock = settings.running_clock
    least_volume = solve(
        graph, request.parts, epsilon=request.epsilon, clock=clock.part(0.5), seed=request.seed,
        shares=request.shares, on_progress=request.on_progress,
    )  # fmt: skip
    # plan_fields: the fields of the plan that the user chose: bn (which samples the batch norm statistics
    # are computed over), sync (how copies of parameters are kept equal) and optimizer
    try:
        improved = improve_step_time(
            graph, cluster, least_volume, clock=clock, seed=request.seed, profile=settings.profile,
            on_progress=request.on_progress, **settings.plan_fields,
        )  # fmt: skip
    except OutOfTime:
        return SearchResult(least_volume.tiles)
    return SearchResult(improved.tiles)


def plan_from_partition(graph: Graph, cluster: Cluster, path: str | pathlib.Path) -> SearchResult:
    """Returns the plan for a file in which another partitioner lists the part of each vertex.

    The vertices are those of a hypergraph that `raddle export` wrote for the same graph.
    """
    # part: an array with the part of each vertex
    part, partitioner = read_partition(path), Partitioner(graph)
    parts = int(part.max()) + 1
    if parts > len(cluster.devices):
        raise InputError(
            f"'{path}' has {parts} parts, '{cluster.name}' {len(cluster.devices)} devices: "
            "partition for as many, or name another cluster."
        )
    partition = partition_from_vector(partitioner.network, part)
    if partition is None:
        raise InputError(
            f"'{path}' has the parts of {len(part)} vertices, which are neither the filters nor the "
            f"channels of '{graph.name}': partition a hypergraph that `raddle export` wrote for it."
        )
    if isinstance(partition, Cells):  # fine; else coarse: the parts of filters, by layer
        return _search_result(partitioner.result_from_cells("partition", partition, parts))
    return _search_result(partitioner.result_from_filters("partition", partition, parts))


def _search_result(result: PartitionResult) -> SearchResult:
    """Returns the tiles of a partition in the form in which every search returns them."""
    return SearchResult(result.tiles, sums=result.sums)  # sums: where partial sums are added
