"""Partitions as methods of a search, and the answers of other partitioners, as plans."""

from __future__ import annotations

import pathlib

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.hypergraph.cells import Cells, partition_from_vector
from raddle.searches.hypergraph.formats import read_partition
from raddle.searches.hypergraph.partitioner import Answer, Asked, Partitioner
from raddle.searches.operator_times import device_speeds
from raddle.searches.settings import Clock, SearchResult, Settings


def search(graph: Graph, cluster: Cluster, grain: str, settings: Settings) -> SearchResult:
    """A part a device; parts are as large as their devices are fast."""
    asked = Asked(
        len(cluster.devices), epsilon=settings.epsilon, budget=settings.budget, seed=settings.seed,
        shares=None if cluster.homogeneous else device_speeds(graph, cluster), heard=settings.on_progress,
    )  # fmt: skip
    if grain == "mixed":
        return _mixed(graph, cluster, asked, settings)
    return _found(Partitioner(graph).answer(grain, asked))


def _mixed(graph: Graph, cluster: Cluster, asked: Asked, settings: Settings) -> SearchResult:
    """First few bytes, and from there a short step."""
    from raddle.searches.hypergraph.mixed import solve
    from raddle.searches.hypergraph.mixed_step_time import improve

    clock = Clock(settings.budget, settings.stopwatch)
    few = solve(
        graph, asked.parts, epsilon=asked.epsilon, budget=0.5 * asked.budget, seed=asked.seed,
        shares=asked.shares, heard=asked.heard,
    )  # fmt: skip
    left = max(0.0, settings.budget - clock.seconds)
    found = improve(
        graph, cluster, few, budget=left, seed=asked.seed, profile=settings.profile,
        heard=asked.heard, **settings.plan_fields,
    )  # fmt: skip
    return SearchResult(found.tiles)


def given(graph: Graph, cluster: Cluster, path: str | pathlib.Path) -> SearchResult:
    """The plan of another partitioner's answer for a hypergraph that `raddle export` wrote."""
    part, own = read_partition(path), Partitioner(graph)
    parts = int(part.max()) + 1
    if parts > len(cluster.devices):
        raise InputError(
            f"'{path}' has {parts} parts, '{cluster.name}' {len(cluster.devices)} devices: "
            "partition for as many, or name another cluster."
        )
    found = partition_from_vector(own.network, part)
    if found is None:
        raise InputError(
            f"'{path}' has the parts of {len(part)} vertices, which are neither the filters nor the "
            f"channels of '{graph.name}': take a file that `raddle export` wrote for it."
        )
    if isinstance(found, Cells):
        return _found(own.spelt("partition", found, parts))
    return _found(own.filters("partition", found, parts))


def _found(answer: Answer) -> SearchResult:
    return SearchResult(answer.tiles, sums=answer.sums)
