"""3D parallelism: stages, and tensor and data parallelism inside of each, as Megatron-LM combines them.

Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM (arXiv
2104.04473): P stages of about equal work, each on consecutive devices, under the schedule 1f1b; inside of a
stage, layers are split over T devices of a node, and samples over the other D. Differs from the paper: the
degrees are chosen by simulation, and stages are not interleaved.
"""

# m: number of micro-batches

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from raddle.clusters import Cluster
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.searches.experts.megatron import megatron
from raddle.searches.nodes import devices_per_node
from raddle.searches.pipeline.method import PipelineCandidate, PipelineSearch
from raddle.searches.pipeline.request import balanced_partition
from raddle.searches.pipeline.shortest_step import StepPartition
from raddle.searches.settings import SearchResult, Settings
from raddle.searches.starts import BaselineFunction

MICROBATCHES_PER_STAGE = 4  # so that at most a fifth of a step is idle at its ends


@dataclass(frozen=True)
class Degrees:
    """How many stages, how many devices share a layer, how many share the samples of a stage."""

    stages: int
    tensor: int
    data: int
    microbatches: int

    @property
    def stage_methods(self) -> dict[str, BaselineFunction]:
        """The functions that tile the operators of a stage, by name."""
        return {
            f"megatron {self.tensor}{', sequence parallel' if sequence else ''}": partial(
                megatron, tensor=self.tensor, sequence=sequence
            )
            for sequence in (True, False)
        }


def degrees_to_try(graph: Graph, cluster: Cluster) -> Iterator[Degrees]:
    """Yields the degrees: those with much tensor parallelism and few stages first."""
    count = len(cluster.devices)
    node = devices_per_node(cluster) or count
    for tensor in [t for t in range(node, 1, -1) if node % t == 0]:
        for stages in [p for p in range(2, count // tensor + 1) if count % (p * tensor) == 0]:
            data = count // (stages * tensor)
            microbatches = min(MICROBATCHES_PER_STAGE * stages, graph.batch // data)
            if microbatches >= stages:
                yield Degrees(stages, tensor, data, microbatches)


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """Return the fastest degrees that fit; if none fit, those with the smallest peak memory."""
    candidates = three_d_candidates(graph, cluster, settings.with_running_clock())
    best = candidates[0]
    rows = tuple(c.row() for c in candidates)
    return replace(best.result, start=best.name, stopped="candidates", tried=rows)


def three_d_candidates(
    graph: Graph, cluster: Cluster, settings: Settings
) -> list[PipelineCandidate]:
    """Return simulated candidates, the best first. Raises InputError if no degrees are possible."""
    pipelines = PipelineSearch(graph, cluster, settings)
    with suppress(OutOfTime):
        for degrees in degrees_to_try(graph, cluster):
            if degrees.stages > len(pipelines.layer_graph.op_names):
                continue
            partition = _even_stages(pipelines, degrees)
            pipelines.try_partition(
                degrees.microbatches, partition, "1f1b", stage_methods=degrees.stage_methods
            )
    if pipelines.simulated:
        return pipelines.ranked()
    if pipelines.refusals:
        raise InputError(pipelines.refusals[0])
    raise InputError(
        f"3d needs two stages or more of two devices or more, and a sample for each micro-batch, which "
        f"'{cluster.name}' with a batch of {graph.batch} does not give: use megatron or pipeline."
    )


def _even_stages(pipelines: PipelineSearch, degrees: Degrees) -> StepPartition:
    """Return stages of about equal work, each on as many consecutive devices."""
    samples = ceil(pipelines.graph.batch / degrees.microbatches)
    costs = pipelines.cost_model.micro_batch_costs(samples)
    partition = balanced_partition(costs, range(degrees.stages))
    size = pipelines.device_count // degrees.stages
    stages = tuple(
        replace(stage, devices=tuple(range(s * size, (s + 1) * size)))
        for s, stage in enumerate(partition.stages)
    )
    return replace(partition, stages=stages)
