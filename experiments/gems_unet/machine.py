"""Measures this machine as a cluster of ranks, and the operators of plans one by one, for predictions.

The simulator gives each rank a core of its own. If ranks share cores, a step takes at least all ranks'
compute time divided by the cores: `seconds_with_shared_cores` returns the simulated time or this bound,
whichever is larger.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from experiments.gems_unet.methods import PlannedMethod, PredictedStep
from raddle.api.clusters import Cluster, cores
from raddle.api.costs import ComputeCosts, Profile, measure
from raddle.api.probing import describe, probe
from raddle.api.programs import active_values

PROBED = 2  # ranks that are probed; all others are assumed to be as fast


def probe_machine(ranks: int, *, quick: bool) -> Cluster:
    """Returns a cluster with `ranks` devices, each as fast as one of the PROBED ranks.

    quick: a shorter, rougher measurement.
    """
    # fresh: measured again, even if an earlier result is cached
    probed = Cluster.from_dict(
        describe(probe(min(PROBED, cores()), quick=quick, fresh=True))
    ).to_dict()
    kind = next(iter(probed["devices"]))
    # a probed cluster has one node with one kind of device
    (node,) = probed["nodes"]
    return Cluster.from_dict({**probed, "nodes": [{**node, "devices": [kind] * ranks}]})


def measure_operators(
    plans: Iterable[PlannedMethod], kind: str, profile: Profile, repeats: int
) -> Profile:
    """Adds the seconds of all distinct tiles of the plans to a profile, measured with one thread.

    kind: of device, for the profile's keys; repeats: measurements of each tile.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for graph, plan in plans:
            compute = ComputeCosts(graph, frozenset(active_values(graph)))
            # for each operator: the operands whose gradients are computed, and so measured too
            grad_operands = {op.name: compute.grad_operands[op.name, "B"] for op in graph.ops}
            boxes = [(op, box) for op in graph.ops for box in plan.tiles[op.name].boxes]
            profile = measure(
                graph, boxes, grad_operands, kind, "cpu", previous=profile, repeats=repeats
            )
    finally:
        torch.set_num_threads(threads)
    return profile


def seconds_with_shared_cores(predicted: PredictedStep) -> float:
    """Returns the seconds of a step when all ranks share the cores of this machine."""
    return max(predicted.seconds, predicted.compute_seconds / cores())
