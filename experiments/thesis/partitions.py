"""Partitions VGG-16 as in the thesis's Tables 5.1 to 5.12, method by method, and by further methods.

The thesis is that of B. Eserol (docs/papers.md), and this file belongs to `raddle reproduce thesis`.

Where the thesis has a table, work is in its unit (weights reconstructed from its Tables 5.1 and 5.5,
printed.py), and a fully connected layer is one vertex of the hypergraph. In methods named
*FLOPs*, work is counted in FLOPs of a forward, and each neuron of a fully connected layer is a vertex.
Volumes (data sent) are of a forward, in Mi elements. MiB are of a whole step: forward, backward and
all-reduce of gradients, in float32.

A *part* is what one device gets. *Coarse*: whole filters are distributed; *fine*: input channels of
filters; *mixed*: each layer along its best axis (samples, filters, input channels, height or width).
`theirs` is printed, `ours` raddle's. Of a PartitionResult (raddle/searches/hypergraph/partitioner.py),
`work` is by part, `volume` the elements sent in a forward, `volume_bytes` the bytes sent in a step.

Differs from the thesis: coarse and fine partitions may be as uneven as the printed ones are. The printed
ones are in some cases more even than their bound demands, and in others they break it.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.thesis.printed import ALL, DEFAULT, PARTS, RECONSTRUCTED, PrintedRow
from raddle.api.clusters import cluster
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.partitioning import Partitioner, PartitionRequest, PartitionResult
from raddle.api.planning import Settings, plan_and_predict
from raddle.api.results import Cell, Column, Table

MI = 2**20
CLUSTER = "skylake-10gbe"  # the cluster of searched plans
MIXED, AUTO = "hypergraph-mixed", "auto"


class WeightedPartitioners(NamedTuple):
    """Partitioners of one network under three kinds of vertex weights (the work of a filter)."""

    by_reconstruction: Partitioner  # the thesis's weights, reconstructed (printed.py)
    by_flops: Partitioner  # FLOPs of a forward
    by_profile: Partitioner  # from FLOPs and from seconds measured here

    @property
    def graph(self) -> Graph:
        """The graph of the network."""
        return self.by_flops.graph

    @property
    def parameters(self) -> int:
        """The number of parameters of the network."""
        return sum(layer.parameters for layer in self.by_flops.network.layers)


class StepVolume(NamedTuple):
    """Bytes and balance of a plan that has no counterpart in the thesis's tables."""

    nbytes: int  # sent in a step
    imbalance: float | None = None  # work of the largest part divided by the average
    result: PartitionResult | None = None  # None: of a searched plan, or of data parallelism


def make_partitioners(graph: Graph, profiled: np.ndarray) -> WeightedPartitioners:
    """Returns the partitioners of a graph under the three kinds of weights.

    profiled: the work of each layer, from measured seconds and FLOPs (weights.py).
    """
    return WeightedPartitioners(
        Partitioner(graph, np.array(RECONSTRUCTED, float), connected_as_one=True),
        Partitioner(graph),
        Partitioner(graph, profiled),
    )


def allowed_epsilon(printed: PrintedRow) -> float:
    """Returns epsilon for our partition: the imbalance of the printed partition, minus 1."""
    return printed.imbalance - 1


def partition_as_printed(
    partitioners: WeightedPartitioners, parts: int, budget: float
) -> dict[str, PartitionResult]:
    """Returns our partitions by the name of the thesis's method, if its table has a row for `parts`."""
    results = {}
    for theirs in ALL:
        if parts in theirs.rows:
            request = PartitionRequest(
                parts, epsilon=allowed_epsilon(theirs.rows[parts]), budget=budget
            )
            results[theirs.name] = partitioners.by_reconstruction.partition(theirs.method, request)
    return results


def measure_other_methods(
    partitioners: WeightedPartitioners, parts: int, budget: float, most_plans: int
) -> dict[str, StepVolume]:
    """Returns bytes and balance of methods that the thesis's tables do not have, by name.

    budget: seconds of each search; most_plans: the most parts for which plans are searched too.
    """
    # epsilon: the largest part may have (1 + epsilon) times the average work
    request = PartitionRequest(parts, epsilon=DEFAULT, budget=budget)
    volumes = {
        "coarse-grain, FLOPs": _volume_of_result(
            partitioners.by_flops.partition("coarse", request)
        ),
        "fine-grain, FLOPs": _volume_of_result(partitioners.by_flops.partition("fine", request)),
        "coarse-grain, profiled here": _volume_of_result(
            partitioners.by_profile.partition("coarse", request)
        ),
        "data parallelism": StepVolume(data_bytes(partitioners.parameters, parts), 1.0),
    }
    volumes["mixed, least bytes"] = _volume_of_result(
        partitioners.by_flops.partition("mixed", request)
    )
    if parts <= most_plans:
        for method in (MIXED, AUTO):
            volumes[method] = volume_of_plan(partitioners.graph, method, parts, budget)
    return volumes


def data_bytes(parameters: int, parts: int) -> int:
    """Returns the bytes of a data-parallel step by the thesis's formula, 2 (N - 1) x 4 x parameters."""
    return 2 * (parts - 1) * 4 * parameters


def volume_of_plan(graph: Graph, method: str, parts: int, budget: float) -> StepVolume:
    """Returns bytes and balance of a plan that is searched for the shortest step, not the fewest bytes."""
    on = cluster(f"{CLUSTER}:{parts}x1")
    prediction = plan_and_predict(graph, on, method, settings=Settings(budget=budget))
    return StepVolume(prediction.timeline.comm_bytes, prediction.timeline.imbalance)


def _volume_of_result(result: PartitionResult) -> StepVolume:
    """Returns bytes and balance of a partition."""
    return StepVolume(result.volume_bytes, result.imbalance, result)


def heaviest_volume(result: PartitionResult) -> float:
    """Returns the Mi elements sent of the feature map that is sent most."""
    return max(result.sent_elements.values(), default=0) / MI


# Column: name, source of its numbers ("counted": from a plan alone), digits after the point
COLUMNS = (
    Column("method"), Column("tables"),
    Column("largest part", "printed", 0), Column("largest part", "counted", 0),
    Column("smallest part", "printed", 0), Column("smallest part", "counted", 0),
    Column("largest/average", "printed", 2), Column("largest/average", "counted", 2),
    Column("volume", "printed", 1), Column("volume", "counted", 1),
    Column("heaviest layer", "printed", 1), Column("heaviest layer", "counted", 1),
    Column("MiB a step", "counted", 1),
)  # fmt: skip
NOTE = (
    "Work in the thesis's unit, with weights reconstructed from its Tables 5.1 and 5.5; coarse and fine "
    "partitions are at most as uneven as printed. In rows without a table, partitions balance FLOPs, or "
    "the work profiled here; their largest part may be 1.1 times the average. Volumes of a forward in Mi "
    "elements, which the thesis prints as MB. MiB a step: forward, backward and all-reduce of gradients in "
    "float32, which is 8 x the volume where no parameter has copies. "
    f"hypergraph-mixed and auto minimise the time of a step on {CLUSTER}, not bytes; their "
    "largest/average is of simulated compute time."
)


def table(
    parts: int, ours: Mapping[str, PartitionResult], further: Mapping[str, StepVolume]
) -> Table:
    """Returns the table of all methods for one number of parts.

    ours: our partitions by the thesis's methods; further: methods that the thesis does not have.
    """
    rows = [
        printed_row(theirs.name, theirs.tables, theirs.rows[parts], ours[theirs.name])
        for theirs in ALL
        if parts in theirs.rows
    ]
    rows += [_further_row(name, counted) for name, counted in further.items()]
    return Table(
        f"Tables 5.1 to 5.12 at N = {parts}", COLUMNS, rows, NOTE if parts == PARTS[0] else ""
    )


def printed_row(name: str, tables: str, theirs: PrintedRow, ours: PartitionResult) -> list[Cell]:
    """Returns a row in the order of COLUMNS; tables: the numbers of the thesis's tables."""
    return [
        name, tables,
        theirs.most, float(ours.work.max()), theirs.least, float(ours.work.min()),
        theirs.imbalance, ours.imbalance, theirs.volume, ours.volume / MI,
        theirs.heaviest, heaviest_volume(ours), ours.volume_bytes / MI,
    ]  # fmt: skip


def _further_row(name: str, counted: StepVolume) -> list[Cell]:
    """Returns the row of a method without a printed table, in the order of COLUMNS."""
    partition = counted.result
    # volume and heaviest layer, each printed (None) and counted
    volume: Sequence[Cell] = [None, None, None, None]
    if partition is not None:
        volume = [None, partition.volume / MI, None, heaviest_volume(partition)]
    # [None] * 5: largest and smallest part, each printed and counted, and the printed largest/average
    return [name, "", *[None] * 5, counted.imbalance, *volume, counted.nbytes / MI]


def vgg16(batch: int = 32) -> Graph:
    """Returns the graph of VGG-16."""
    return capture_model("vgg16", batch)
