"""Runs one rank that measures links or operators for local_cluster.py.

local_cluster.py starts it under torchrun: python -m experiments.cost_models.local_cluster_rank request.json
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch
import torch.distributed as dist

from experiments.messages import measure_messages
from raddle.api.costs import ComputeCosts, Profile, measure
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.plans import Plan, plan_from_dict, read_plan
from raddle.api.programs import active_values
from raddle.api.transports import end_with_parent
from raddle.files import read_scratch, write_scratch


def main(request: dict[str, Any]) -> None:
    """Measures what the request asks for; rank 0 writes the result to a file.

    request: what ("messages" or "profile"), repeats (measurements of each message or tile), out (file of
    the result). For "profile" also spec and batch (of the model), plans (files), and kind (of device).
    """
    end_with_parent()  # this process ends when its parent does
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = (
        measure_messages(request["repeats"])
        if request["what"] == "messages"
        else measure_tiles(request)
    )
    if dist.get_rank() == 0:
        write_scratch(request["out"], result)
    dist.barrier()
    dist.destroy_process_group()


def measure_tiles(request: dict[str, Any]) -> dict[str, float]:
    """Returns the seconds of the tiles of all plans, by the tile's key in a Profile.

    They are the median of the ranks, which all measure at the same time.
    Phases: B is the backward; if a plan splits it, B is that of activations and W that of parameters.
    """
    graph = capture_model(request["spec"], request["batch"])
    measured = Profile()
    for path in request["plans"]:
        data = read_plan(path)
        micro_batch_graph = graph.for_batch(-(-data["batch"] // data["microbatches"]))
        plan = plan_from_dict(data, micro_batch_graph)
        for phase in ("B", "W") if plan.split_backward else ("B",):
            measured = _measure_plan(micro_batch_graph, plan, phase, request, measured)
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, measured.seconds)
    return {key: statistics.median(of_rank[key] for of_rank in by_rank) for key in measured.seconds}


def _measure_plan(
    graph: Graph, plan: Plan, phase: str, request: dict[str, Any], previous: Profile
) -> Profile:
    """Adds the plan's tiles to `previous`: seconds of their forward and of a backward phase (B or W)."""
    compute = ComputeCosts(
        graph, frozenset(active_values(graph)), split_backward=plan.split_backward
    )
    # for each operator: the operands whose gradients this phase computes
    grad_operands = {op.name: compute.grad_operands[op.name, phase] for op in graph.ops}
    boxes = [(op, box) for op in graph.ops for box in plan.tiles[op.name].boxes]
    kind, repeats = request["kind"], request["repeats"]
    return measure(graph, boxes, grad_operands, kind, previous=previous, repeats=repeats)


if __name__ == "__main__":
    main(read_scratch(sys.argv[1]))
