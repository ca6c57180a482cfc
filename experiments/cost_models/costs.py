"""Computes the cost of a plan under each cost model, from one lowered program.

    flops       of the busiest device in a step, forward and backward
    volume      bytes that cross devices in a step
    OptCNN      seconds, all one after the other: compute t_C + synchronisation t_S (by parameter servers)
                + transfers t_X (arXiv 1802.04924, section 4)
    additive    the same, but parameters synchronised as the plan does it
    simulator   seconds of a step on links and devices that work at the same time

Differs from the paper: OptCNN tabulates these costs by configuration (searches/optcnn/tables.py), and its
configurations are always on the first devices; here they are counted for any plan. A node of OptCNN's
graph is here one operator, not a group. The costs of micro-batches are added up, because in the additive
models only the tiles of one operator run at the same time.
"""

# d: device. A Timeline is the result of a simulation. Its `tasks` has arrays with one entry per task: the
# number of its instruction (ascending), source and device (equal, unless the task is a message), duration
# in nanoseconds, and the first and second resource (device or link) that it occupies (-1: none).

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from raddle.api.clusters import Cluster
from raddle.api.costs import ComputeCosts, Profile, server_bytes
from raddle.api.models import Graph, work
from raddle.api.plans import Plan
from raddle.api.programs import Merge, Move, Program, Reduce, Run, Update
from raddle.api.simulating import Timeline, simulate_steps

Array = np.ndarray


class Costs(NamedTuple):
    """The cost of one plan under each model, in the order of MODELS."""

    flops: float  # FLOPs of a step on the busiest device
    volume: float  # bytes
    optcnn: float  # seconds
    additive: float  # seconds
    simulator: float  # seconds


MODELS = {
    "flops": "flops only", "volume": "volume only", "optcnn": "OptCNN's additive",
    "additive": "additive, sync as run", "simulator": "raddle's simulator",
}  # fmt: skip
IN_SECONDS = ("optcnn", "additive", "simulator")


def costs(graph: Graph, plan: Plan, cluster: Cluster, profile: Profile | None = None) -> Costs:
    """Returns the cost of a plan under every model.

    graph: of a micro-batch, if the plan has micro-batches.
    """
    timeline = simulate_steps(graph, plan, cluster, profile)
    sums = additive_costs(timeline)
    return Costs(
        flops=float(busiest_flops(timeline.program)),
        volume=float(timeline.comm_bytes),
        optcnn=float(sums.compute + sums.transfer + server_sync_seconds(timeline.program, cluster)),
        additive=float(sum(sums)),
        simulator=timeline.step_seconds,
    )


# -- flops only ------------------------------------------------------------------------------------


def busiest_flops(program: Program) -> float:
    """Returns the flops of a step on the device that has most; recomputed operators count again.

    A Run computes the tiles of one operator in one phase (forward, backward, ...).
    """
    # active: the values that have gradients
    compute = ComputeCosts(
        program.graph, program.active, split_backward=program.plan.split_backward
    )
    by_device: dict[int, float] = defaultdict(float)
    # key: the step, micro-batch and variant (micro-batch size and devices) that an instruction belongs to
    for run in program.instructions:
        if not isinstance(run, Run) or run.key.step:  # only the first step
            continue
        variant = program.variant(run.key)  # graph and tiles of this micro-batch
        op, grad_operands = variant.ops[run.op], compute.grad_operands.get((run.op, run.phase))
        # None: the work of the forward; a number: that of the gradient of this operand
        operands = (None,) if grad_operands is None else grad_operands
        for tile in variant.tiles[run.op].tiles:
            by_device[tile.device] += sum(work(op, tile.box, i).flops for i in operands)
    return max(by_device.values())


# -- one after the other ---------------------------------------------------------------------------


class AdditiveCosts(NamedTuple):
    """Seconds of a step if nothing overlapped."""

    compute: float  # t_C: the device that takes longest, operator by operator
    transfer: float  # t_X: the link that takes longest, value by value
    sync: float  # of parameters, as the plan does it, with their update


def additive_costs(timeline: Timeline) -> AdditiveCosts:
    """Returns the additive cost: the durations of the last step's instructions, each by itself.

    Instructions: Run computes an operator, Merge adds partial sums, Move sends values or parameters, Reduce
    all-reduces gradients, Update updates a parameter.
    """
    program, tasks = timeline.program, timeline.tasks
    instructions, last = program.instructions, program.plan.steps - 1
    longest = _longest_by_instruction(timeline)
    # (operator, micro-batch, variant) -> device -> nanoseconds
    operators: dict[tuple[object, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    transfer = sync = 0.0
    for number, instruction in enumerate(instructions):
        if instruction.key.step != last:
            continue
        if isinstance(instruction, Run):  # adds up forward and backward on each device
            key = (instruction.op, instruction.key.micro_batch, instruction.key.variant)
            its_tasks = slice(*np.searchsorted(tasks.instruction, [number, number + 1]))
            for d, t in zip(tasks.device[its_tasks], tasks.duration[its_tasks], strict=True):
                operators[key][int(d)] += float(t)
        elif isinstance(instruction, Merge):
            # Only the time on the busiest device is known; it is stored as that of device 0.
            operators["merge", number][0] = longest[number]
        elif isinstance(instruction, Move) and not instruction.kind.is_of_parameter:
            transfer += longest[number]
        else:
            assert isinstance(instruction, Move | Reduce | Update)
            sync += longest[number]
    compute = sum(max(by_device.values()) for by_device in operators.values())
    return AdditiveCosts(compute / 1e9, transfer / 1e9, sync / 1e9)


def _longest_by_instruction(timeline: Timeline) -> Array:
    """Returns the nanoseconds of each instruction on its busiest resource.

    The messages of an instruction over one link share one latency: the largest of theirs.
    """
    tasks, longest = timeline.tasks, np.zeros(len(timeline.program.instructions))
    columns: list[tuple[Array, ...]] = []
    for resource in (tasks.first_resource, tasks.second_resource):
        has_resource = resource >= 0
        # one number for each pair of instruction and resource (tasks.resources is how many there are)
        pair = tasks.instruction[has_resource] * tasks.resources + resource[has_resource]
        columns.append((pair, tasks.duration[has_resource], tasks.latency[has_resource]))
    pair, duration, latencies = (np.concatenate(column) for column in zip(*columns, strict=True))
    # inverse: for each entry of `pair`, its index in `pairs`
    pairs, inverse = np.unique(pair, return_inverse=True)
    total, largest_latency = np.bincount(inverse, weights=duration), np.zeros(len(pairs))
    np.maximum.at(largest_latency, inverse, latencies)
    np.maximum.at(longest, pairs // tasks.resources, total + largest_latency)
    return longest


def server_sync_seconds(program: Program, cluster: Cluster) -> float:
    """Returns t_S of the paper, the seconds of synchronisation.

    Every holder of a parameter sends its gradient to a server and receives the parameter, and all of these
    bytes go through one link: between nodes if there are several, else inside the node.
    """
    # For each parameter: its regions (boxes), each with the devices that hold it
    nbytes = sum(
        server_bytes(len(region.devices), region.box.volume * program.element_bytes(name))
        for name, regions in program.regions.items()
        for region in regions
    )
    link = cluster.node_networks[0] if cluster.nodes > 1 else cluster.node_links[0]
    return nbytes / link.bandwidth if link is not None else 0.0
