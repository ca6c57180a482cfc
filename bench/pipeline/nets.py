"""Makes the nets of README.md's second table: models, their stages, plans and predictions."""

# P: stages, m: micro-batches

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from raddle import supervised
from raddle.clusters import Cluster
from raddle.costs.compute import ComputeCosts
from raddle.costs.profile import Profile, measure
from raddle.graph.capture import capture
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan, describe_inputs, parameter_shapes
from raddle.plans.tiling import whole_tiling
from raddle.program.lower import lower
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import simulate
from raddle.zoo.examples import images, masked_images
from raddle.zoo.losses import class_loss
from raddle.zoo.resnet_cifar import CifarResNet
from raddle.zoo.unet import UNet
from raddle.zoo.workload import Workload

SCHEDULES = ("sequential", "gpipe", "1f1b", "gems")
MICROBATCHES = 4  # two pairs for GEMS


@dataclass(frozen=True)
class Net:
    """A net that is measured."""

    name: str
    build: partial[nn.Module]
    examples: object  # a function: number of samples -> inputs and targets
    micro: int  # images of a micro-batch


NETS = {
    "resnet110": Net("resnet110", partial(CifarResNet, 12), images(3, 32, classes=10), 8),
    # A quarter of the zoo's widths and half its side: its own would take minutes a step here.
    "unet": Net(
        "unet",
        partial(UNet, widths=(16, 32, 64, 128, 256)),
        masked_images(3, 128, classes=2),
        2,
    ),
}


def load(name: str, samples: int) -> Workload:
    """Returns a net with example inputs and targets; its weights are the same on every rank."""
    net = NETS[name]
    torch.manual_seed(0)
    model = net.build()
    inputs, targets = net.examples(samples)  # type: ignore[operator]
    return Workload(name, model, (*inputs, *targets), supervised(class_loss))


def captured(name: str) -> Graph:
    """Returns the graph of one micro-batch."""
    workload = load(name, NETS[name].micro)
    return capture(workload.model, workload.batch, workload.loss, name=name)


def profiled(graph: Graph, kind: str) -> Profile:
    """Returns the seconds of every operator as a whole, on this machine, with one thread."""
    compute = ComputeCosts(graph, active_values(graph))
    # For each operator: the operands whose gradients are computed, and so measured too
    grad_operands = {op.name: compute.grad_operands[op.name, "B"] for op in graph.ops}
    boxes = [(op, op.space.full) for op in graph.ops]
    return measure(graph, boxes, grad_operands, kind, "cpu")


def planned(graph: Graph, stages: Sequence[Sequence[str]], schedule: str) -> Plan:
    """Returns the plan of stages (names of their operators), each on one device."""
    stage_of = {name: s for s, stage in enumerate(stages) for name in stage}
    tiles = {
        op.name: whole_tiling([d.size for d in op.space.dims], [stage_of[op.name]])
        for op in graph.ops
    }
    return Plan(
        tiles, len(stages), bn="microbatch", microbatches=MICROBATCHES, schedule=schedule,
        stages=tuple(tuple(stage) for stage in stages), model=graph.name, batch=MICROBATCHES * graph.batch,
        fingerprint=graph.fingerprint(), inputs=describe_inputs(graph), parameters=parameter_shapes(graph),
    )  # fmt: skip


def predicted(
    graph: Graph, plan: Plan, cluster: Cluster, profile: Profile
) -> tuple[float, list[int]]:
    """Returns the seconds of a step, and the peak of each rank in bytes."""
    timeline = simulate(lower(graph, replace(plan, steps=2)), cluster, profile)
    return timeline.step_seconds, peak_bytes(timeline)


def cut(graph: Graph, count: int, cluster: Cluster, profile: Profile) -> list[list[str]]:
    """Returns the operators of each of `count` stages.

    The graph is cut before convolutions and matrix products, so that the slowest stage, with its transfer,
    is as fast as possible.
    """
    names, device = [op.name for op in graph.ops], cluster.devices[0]
    compute = ComputeCosts(graph, active_values(graph), profile)
    seconds = [
        sum(compute.seconds(op, op.space.full, phase, device) for phase in "FB") for op in graph.ops
    ]
    before = [0.0, *itertools.accumulate(seconds)]  # seconds of all operators before each
    points = [0, *(i for i in range(1, len(names)) if graph.ops[i].space.is_product), len(names)]
    link = cluster.route(0, 1).bandwidth
    # For each cut: seconds to send the activations over it, and their gradients back
    sent = {p: 2 * _crossing(graph, p) / link for p in points}

    # best[p]: seconds of the slowest stage before cut p, and where the stages end
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for stages_left in range(count - 1, -1, -1):
        ends = [points[-1]] if stages_left == 0 else points[1:-1]
        extended: dict[int, tuple[float, list[int]]] = {}
        for q in ends:
            options = [
                (max(slowest, before[q] - before[p] + sent[q]), [*cuts, q])
                for p, (slowest, cuts) in best.items()
                if p < q
            ]
            if options:
                extended[q] = min(options)
        best = extended
    ((_, cuts),) = best.values()
    return [names[a:b] for a, b in itertools.pairwise([0, *cuts])]


def _crossing(graph: Graph, at: int) -> int:
    """Returns the bytes that operators before a point make and operators after it read."""
    made = {o for op in graph.ops[:at] for o in op.outputs}
    read = {i for op in graph.ops[at:] for i in op.inputs}
    return sum(graph.values[name].nbytes for name in made & read)
