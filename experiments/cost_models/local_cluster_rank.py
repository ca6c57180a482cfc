"""One rank of `here`: python -m experiments.cost_models.local_cluster_rank asked.json, under torchrun."""

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


def main(asked: dict[str, Any]) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = (
        measure_messages(asked["repeats"]) if asked["what"] == "messages" else measure_tiles(asked)
    )
    if dist.get_rank() == 0:
        write_scratch(asked["out"], found)
    dist.barrier()
    dist.destroy_process_group()


def measure_tiles(asked: dict[str, Any]) -> dict[str, float]:
    """Seconds of the tiles of all plans, while the other ranks measure the same; the ranks' median."""
    graph = capture_model(asked["spec"], asked["batch"])
    found = Profile()
    for path in asked["plans"]:
        data = read_plan(path)
        own = graph.for_batch(-(-data["batch"] // data["microbatches"]))
        plan = plan_from_dict(data, own)
        for phase in ("B", "W") if plan.split_backward else ("B",):
            found = _measure_plan(own, plan, phase, asked, found)
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, found.seconds)
    return {key: statistics.median(own[key] for own in ranks) for key in found.seconds}


def _measure_plan(
    graph: Graph, plan: Plan, phase: str, asked: dict[str, Any], known: Profile
) -> Profile:
    compute = ComputeCosts(
        graph, frozenset(active_values(graph)), split_backward=plan.split_backward
    )
    wanted = {op.name: compute.grad_operands[op.name, phase] for op in graph.ops}
    boxes = [(op, box) for op in graph.ops for box in plan.tiles[op.name].boxes]
    kind, repeats = asked["kind"], asked["repeats"]
    return measure(graph, boxes, wanted, kind, previous=known, repeats=repeats)


if __name__ == "__main__":
    main(read_scratch(sys.argv[1]))
