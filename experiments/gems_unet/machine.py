"""This machine as a cluster of ranks, and its operators measured one by one: what predictions are made of.

A rank is predicted with a core of its own. Where ranks share cores, a step takes at least what all of them
compute together over the cores: `shared` is the larger of the two.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from experiments.gems_unet.methods import PlannedMethod, PredictedStep
from raddle.api.clusters import Cluster, cores
from raddle.api.costs import ComputeCosts, Profile, measure
from raddle.api.probing import describe, probe
from raddle.api.programs import active_values

PROBED = 2  # ranks that are measured at a time: no more than there are cores


def probe_machine(ranks: int, *, quick: bool) -> Cluster:
    """As many devices as ranks, each as fast as one of the few that were measured together."""
    data = Cluster.from_dict(
        describe(probe(min(PROBED, cores()), quick=quick, fresh=True))
    ).to_dict()
    kind = next(iter(data["devices"]))
    (node,) = data["nodes"]
    return Cluster.from_dict({**data, "nodes": [{**node, "devices": [kind] * ranks}]})


def measure_operators(
    plans: Iterable[PlannedMethod], kind: str, profile: Profile, repeats: int
) -> Profile:
    """Seconds of every distinct tile of the plans with one thread; what is known is not measured again."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for graph, plan in plans:
            compute = ComputeCosts(graph, frozenset(active_values(graph)))
            wanted = {op.name: compute.grad_operands[op.name, "B"] for op in graph.ops}
            boxes = [(op, box) for op in graph.ops for box in plan.tiles[op.name].boxes]
            profile = measure(graph, boxes, wanted, kind, "cpu", previous=profile, repeats=repeats)
    finally:
        torch.set_num_threads(threads)
    return profile


def seconds_with_shared_cores(predicted: PredictedStep) -> float:
    """Seconds of a step where the ranks have the cores of this machine between them."""
    return max(predicted.seconds, predicted.compute_seconds / cores())
