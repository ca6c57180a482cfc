"""Simulates the rows of Table 5.15 on any cluster. A row is a kind of parallelism (lab_plans.py).

The thesis is that of B. Eserol (docs/papers.md), and this file belongs to `raddle reproduce thesis`.

Model parallelism overlaps steps, as in the thesis: its plans have the schedule "threaded:K". It has no
pipeline stages; K steps run at the same time, each on a batch of its own, and a device computes for one
step while another waits for a message (program/threaded_order.py). Of several K, the fastest that fits
the memory counts. With model parallelism the batch of a row is that of one step. With data parallelism each
worker has the batch, so a step has N times as many images. (This follows from the printed times, which
halve from 2 workers to 4 at every batch.)

Differs from the thesis: the one server is on a worker's node (not said there); the efficiency of
devices does not depend on the batch.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from experiments.thesis.lab_plans import AUTO_ROW, DDP, MIXED, ROWS
from experiments.thesis.lab_table import (
    ASYNC_ALL,
    ASYNC_ONE,
    COARSE,
    FILTERS,
    IMAGES_OF_TEN_EPOCHS,
    LAYERS,
    SYNC_ALL,
    SYNC_ONE,
)
from raddle.api.clusters import Cluster, cluster
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.partitioning import Partitioner, solve_coarse
from raddle.api.planning import SearchResult, Settings, build_plan, plan_and_predict, plan_for
from raddle.api.plans import Plan
from raddle.api.simulating import Timeline, peak_bytes, simulate_steps

# rows: model parallel, data parallel with servers, all data parallel, not in the thesis
MODEL = (LAYERS, FILTERS, COARSE)
SERVERS = (ASYNC_ONE, SYNC_ONE, ASYNC_ALL, SYNC_ALL)
DATA = (*SERVERS, DDP)
FURTHER = (MIXED, AUTO_ROW)
BUDGET = 5.0  # seconds of a coarse partition; with 2 and 4 parts the optimum is proven earlier


class SimulatedRow(NamedTuple):
    """The simulated time of a row at one batch."""

    seconds: float | None  # of ten epochs; None if no plan fits the devices' memory
    steps_in_flight: int = 1  # steps that run at the same time: K of the schedule threaded:K


def simulate_row(
    name: str,
    row: str,
    batch: int,
    *,
    budget: float = 1.0,
    dtype: str = "float32",
    factors: Sequence[int] = (1, 2, 4),
) -> SimulatedRow:
    """Simulates a row. name: of a cluster; batch: as in the table (see the top of this file).

    budget: seconds of a search, for rows of FURTHER. factors: model parallelism is tried with N x each of
    them steps in flight.
    """
    on = cluster(name)
    if row in MODEL:
        return simulate_threaded(vgg16(batch, dtype), on, row, factors)
    if row in FURTHER:
        return _simulate_searched(vgg16(batch, dtype), on, ROWS[row].method, budget)
    graph = vgg16(batch * len(on.devices), dtype)
    plan = plan_for(graph, on, "data", sync=ROWS[row].sync if row in ROWS else "allreduce")
    return SimulatedRow(_ten_epochs(simulate_steps(graph, plan, on), graph))


def simulate_threaded(graph: Graph, on: Cluster, row: str, factors: Sequence[int]) -> SimulatedRow:
    """Simulates a row of MODEL with the schedule threaded:K (K steps at once, see the top of this file).

    K is the number of devices x each of `factors`. Returns the fastest that fits.
    """
    plan, count = _model_plan(graph, on, row), len(on.devices)
    best = SimulatedRow(None)
    for steps_in_flight in (count * factor for factor in factors):
        timeline = simulate_steps(graph, replace(plan, schedule=f"threaded:{steps_in_flight}"), on)
        seconds = _ten_epochs(timeline, graph)
        if seconds is not None and (best.seconds is None or seconds < best.seconds):
            best = SimulatedRow(seconds, steps_in_flight)
    return best


def _model_plan(graph: Graph, on: Cluster, row: str) -> Plan:
    """Returns the plan of a model parallel row; schedule and number of steps in flight are set later."""
    if row != COARSE:
        return plan_for(graph, on, ROWS[row].method, sync="allreduce")
    result = Partitioner(graph).result_from_counts("coarse", _counts(len(on.devices)))
    return build_plan(
        graph, on, ROWS[row].method, SearchResult(result.tiles), Settings(sync="allreduce")
    )


@cache
def _counts(parts: int) -> np.ndarray:
    """Returns the coarse partition (whole filters) as x[layer, part]: filters of the layer in the part.

    The batch does not matter: work and volume grow with it alike.
    """
    return solve_coarse(Partitioner(vgg16(32)).model, parts, budget=BUDGET).x


def _simulate_searched(graph: Graph, on: Cluster, method: str, budget: float) -> SimulatedRow:
    """Simulates a row of FURTHER, whose plan a search finds."""
    prediction = plan_and_predict(graph, on, method, settings=Settings(budget=budget))
    # prediction.row: numbers predicted for the plan, by name (not a row of Table 5.15)
    if not prediction.row["fits"]:
        return SimulatedRow(None)
    return SimulatedRow(IMAGES_OF_TEN_EPOCHS / prediction.row["samples_per_s"])


def _ten_epochs(timeline: Timeline, graph: Graph) -> float | None:
    """Returns the seconds of ten epochs, from a simulated step; None if it does not fit the memory."""
    devices = timeline.cluster.devices
    if any(peak > devices[d].memory for d, peak in enumerate(peak_bytes(timeline))):
        return None
    return timeline.step_seconds * IMAGES_OF_TEN_EPOCHS / graph.batch


@cache
def vgg16(batch: int, dtype: str = "float32") -> Graph:
    """Returns the graph of VGG-16; results are cached, because many rows need the same graph."""
    return capture_model("vgg16", batch, dtype)


def crossover(model: Mapping[int, float], data: Mapping[int, float]) -> int | None:
    """Returns the batch from which on data parallelism is never slower; None if there is none.

    model, data: seconds by batch.
    """
    first_batch = None
    for batch in sorted(set(model) & set(data), reverse=True):
        if data[batch] > model[batch]:
            break
        first_batch = batch
    return first_batch
