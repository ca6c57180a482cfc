"""Makes a plan for each method that is compared: pipelines, GEMS (mirrored pipelines), spatial tiles.

Jain et al. 2020 (SC20), "GEMS: GPU-enabled memory-aware model-parallelism system for distributed DNN
training": MAST has one pair of micro-batches, MASTER several, and GEMS-Hybrid adds data parallelism.

Differs from the paper: all methods train on the same batch (in the paper, MAST doubles it);
so a micro-batch may have a single image.
"""

# m: micro-batches, P: stages, D: data-parallel pipelines

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from raddle.api.clusters import Cluster
from raddle.api.costs import ComputeCosts, Profile
from raddle.api.models import Graph
from raddle.api.plans import Plan, describe_inputs, parameter_shapes, validate
from raddle.api.programs import active_values
from raddle.api.schedules import MAKERS, Action, Schedule, schedule_to_text
from raddle.api.searching import (
    LayerCostModel,
    PipelineRequest,
    build_device_chain,
    build_layer_graph,
    copies,
    spatial,
    stage_op_names,
)
from raddle.api.simulating import peak_bytes, simulate_steps

Stages = tuple[tuple[str, ...], ...]  # by stage, the names of its operators
SPATIAL = "spatial"  # in place of a schedule: every image is split into tiles, one for each device
OPTIMIZER = "momentum"
STATE_FACTOR = 3.0  # bytes held per byte of parameters: weights, gradients, momentum


@dataclass(frozen=True)
class Method:
    """D pipelines of P stages, each with m / D micro-batches; or spatial tiles (schedule SPATIAL).

    schedule: name of a pipeline schedule, such as 1f1b; sequential: one micro-batch after the other; gems:
    mirrored pipelines. "": no pipeline, all on one device, one micro-batch after the other.
    """

    name: str
    schedule: str
    microbatches: int  # m
    stages: int = 1  # P
    pipelines: int = 1  # D


# "spatial by image": one image after the other, each split into tiles
METHODS = (
    Method("one device", "", 4),
    Method("model parallel", "sequential", 4, stages=4),
    Method("GPipe", "gpipe", 4, stages=4),
    Method("1F1B", "1f1b", 4, stages=4),
    Method("GEMS MAST", "gems", 2, stages=4),
    Method("GEMS MASTER", "gems", 4, stages=4),
    Method("spatial", SPATIAL, 1),
    Method("spatial by image", SPATIAL, 4),
    Method("data parallel", "1f1b", 4, stages=1, pipelines=4),
    Method("1F1B x data", "1f1b", 4, stages=2, pipelines=2),
    Method("GEMS x data", "gems", 4, stages=2, pipelines=2),
)
DEVICES = 4


class PlannedMethod(NamedTuple):
    """The plan of a method, with the graph that its tiles refer to."""

    graph: Graph  # of a micro-batch
    plan: Plan


class PredictedStep(NamedTuple):
    """The simulated time and memory of a training step."""

    seconds: float  # of a step
    compute_seconds: float  # seconds that all devices compute in a step, together
    peaks: tuple[int, ...]  # bytes by device


def make_plans(
    methods: Sequence[Method],
    graph: Graph,
    cluster: Cluster,
    *,
    batch: int,
    model: str = "",
    profile: Profile | None = None,
) -> dict[str, PlannedMethod]:
    """Returns the plan of each method, by its name.

    graph: of any batch; batch: samples of a step; model: name of the model, stored in the plans. Methods
    with equal numbers of stages and equal micro-batches have the same stages.
    """
    # (samples of a micro-batch, number of stages) -> stages
    stages_by_size: dict[tuple[int, int], Stages] = {}
    planned = {}
    for method in methods:
        micro = graph.for_batch(batch // method.microbatches)
        stages: Stages = ()
        if method.stages * method.pipelines > 1:
            key = (micro.batch, method.stages)
            if key not in stages_by_size:
                stages_by_size[key] = partition_stages(
                    micro, cluster, method.stages, method.microbatches, profile
                )
            stages = stages_by_size[key]
        plan = replace(_plan(method, micro, cluster, stages), batch=batch, model=model)
        validate(plan, micro)
        planned[method.name] = PlannedMethod(micro, plan)
    return planned


def predict(
    planned: PlannedMethod, cluster: Cluster, profile: Profile | None = None
) -> PredictedStep:
    """Simulates a step; profile: measured operators; without it, their seconds are estimated."""
    timeline = simulate_steps(planned.graph, planned.plan, cluster, profile)
    busy = float(timeline.compute_seconds.sum())
    return PredictedStep(timeline.step_seconds, busy, tuple(peak_bytes(timeline)))


def partition_stages(
    graph: Graph, cluster: Cluster, count: int, microbatches: int, profile: Profile | None = None
) -> Stages:
    """Partitions the operators into stages as raddle's search for pipelines does, with unlimited memory.

    profile: measured operators; without it, their seconds are estimated.
    """
    if count == 1:
        return (tuple(op.name for op in graph.ops),)
    # the search sees a graph of layers (sets of operators) and a chain of devices
    nodes = build_layer_graph(graph)
    compute = ComputeCosts(graph, frozenset(active_values(graph)), profile, bn="local")
    device_chain = build_device_chain(cluster)
    device_chain = replace(device_chain, capacity=(float("inf"),) * len(device_chain.kinds))
    costs = LayerCostModel(nodes, cluster, compute).micro_batch_costs(graph.batch)
    # "gems": with one device for each stage, as GEMS needs it
    partition = PipelineRequest("gems", count).partition(
        costs, device_chain, microbatches, STATE_FACTOR
    )
    assert partition is not None  # with unlimited memory there always is one
    return stage_op_names(nodes, [stage.layers for stage in partition.stages])


def parallel_pipelines(schedule: str, stages: int, microbatches: int, pipelines: int) -> str:
    """Returns the schedule of D data-parallel pipelines as text: the rows of one pipeline after the other.

    The micro-batches are divided among the pipelines. F2.0 is the forward of micro-batch 2 on stage 0, and
    B2.0 its backward; a row is a worker:

    F0.0 B0.0 F1.0 B1.0        two pipelines of one stage, two micro-batches each
    F2.0 B2.0 F3.0 B3.0
    """
    share = microbatches // pipelines
    pipeline = MAKERS[schedule](stages, share)
    # waits: pairs of actions; the first starts after the end of the second
    rows, waits = list[tuple[Action, ...]](), list[tuple[Action, Action]]()
    for first in range(0, pipelines * share, share):
        rows += [
            tuple(_shift_micro_batch(action, first) for action in row) for row in pipeline.rows
        ]
        waits += [
            (_shift_micro_batch(a, first), _shift_micro_batch(b, first)) for a, b in pipeline.waits
        ]
    # a plan stores a schedule that has no name as text
    return schedule_to_text(Schedule(tuple(rows), tuple(waits)))


def _shift_micro_batch(action: Action, offset: int) -> Action:
    """Returns the same action of the micro-batch whose number is larger by `offset`."""
    return action._replace(micro_batch=action.micro_batch + offset)


def _plan(method: Method, graph: Graph, cluster: Cluster, stages: Stages) -> Plan:
    """Returns the plan of a method; graph: of a micro-batch; stages: empty if there is no pipeline."""
    count = len(cluster.devices)
    stage_of = {name: s for s, names in enumerate(stages) for name in names}
    # each operator whole on the device of its stage; bn: batch norm takes its statistics over a
    # micro-batch, or over the whole batch (global)
    plan = Plan(
        {op.name: copies(op, [stage_of.get(op.name, 0)]) for op in graph.ops}, count,
        bn="microbatch" if method.microbatches > 1 else "global", microbatches=method.microbatches,
        stages=stages, optimizer=OPTIMIZER, cluster=cluster.to_dict(), method=method.name,
        fingerprint=graph.fingerprint(), inputs=describe_inputs(graph),
        parameters=parameter_shapes(graph),
    )  # fmt: skip
    if method.schedule == SPATIAL:
        return replace(plan, tiles=spatial(graph, cluster))
    if method.pipelines == 1:
        return replace(plan, schedule=method.schedule)
    schedule_text = parallel_pipelines(
        method.schedule, method.stages, method.microbatches, method.pipelines
    )
    workers = tuple((device,) for device in range(method.stages * method.pipelines))
    return replace(plan, schedule=schedule_text, workers=workers)
