"""Measures, on this machine, the times of the tiles that the plans of the baselines would run."""

from __future__ import annotations

from collections.abc import Sequence

from raddle.clusters import Cluster
from raddle.costs.compute import ComputeCosts
from raddle.costs.profile import Profile, distinct_tiles, measure
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph, Op
from raddle.searches.baselines import BASELINES, applicable_baselines
from raddle.searches.settings import OnProgress


def profile_methods(
    graph: Graph,
    cluster: Cluster,
    *,
    methods: Sequence[str] = tuple(BASELINES),
    device: str = "cpu",
    profile: Profile | None = None,
    on_progress: OnProgress = lambda step: None,
) -> Profile:
    """Measures every distinct tile of the plans of some baselines, and returns a profile with all times.

    device: the PyTorch device to measure on. profile: earlier measurements, which are not repeated.
    """
    kinds = sorted({d.kind for d in cluster.devices})
    if len(kinds) > 1:
        raise InputError(
            f"'{cluster.name}' has devices of the kinds {', '.join(kinds)}, but this machine can "
            "measure only one kind: name a cluster with devices of one kind."
        )
    compute = ComputeCosts(graph, active_values(graph))
    # For each operator, the numbers of the operands whose gradients its backward ("B") computes.
    grad_operands = {op.name: compute.grad_operands[op.name, "B"] for op in graph.ops}
    boxes = _distinct_tiles(graph, cluster, methods, kinds[0])
    done = 0

    def progress(name: str) -> None:
        nonlocal done
        on_progress({"step": name, "done": done, "of": len(boxes)})
        done += 1

    return measure(
        graph, boxes, grad_operands, kinds[0], device, previous=profile, progress=progress
    )


def _distinct_tiles(
    graph: Graph, cluster: Cluster, methods: Sequence[str], kind: str
) -> list[tuple[Op, Box]]:
    """Returns tiles that take different times: of tiles with the same operator kind and shape, only one.

    kind: the kind of the devices.
    """
    tiles_by_key: dict[str, tuple[Op, Box]] = {}
    for tiles in applicable_baselines(graph, cluster, methods).values():
        tiles_by_key = distinct_tiles(graph, tiles, kind) | tiles_by_key
    return list(tiles_by_key.values())
