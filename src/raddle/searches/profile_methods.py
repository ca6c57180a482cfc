"""Measures the operators that the plans of the named methods would run, on this machine."""

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
    """Seconds of every distinct tile of the methods' plans; what is known is not measured again."""
    kinds = sorted({d.kind for d in cluster.devices})
    if len(kinds) > 1:
        raise InputError(
            f"'{cluster.name}' has devices of the kinds {', '.join(kinds)}, and this machine can "
            "measure one: name a cluster of that kind alone."
        )
    compute = ComputeCosts(graph, active_values(graph))
    wanted = {op.name: compute.grad_operands[op.name, "B"] for op in graph.ops}
    boxes = _distinct_tiles(graph, cluster, methods, kinds[0])
    done = 0

    def progress(name: str) -> None:
        nonlocal done
        on_progress({"step": name, "done": done, "of": len(boxes)})
        done += 1

    return measure(graph, boxes, wanted, kinds[0], device, previous=profile, progress=progress)


def _distinct_tiles(
    graph: Graph, cluster: Cluster, methods: Sequence[str], kind: str
) -> list[tuple[Op, Box]]:
    """One tile for each thing that can be measured apart."""
    tiles_by_key: dict[str, tuple[Op, Box]] = {}
    for tiles in applicable_baselines(graph, cluster, methods).values():
        tiles_by_key = distinct_tiles(graph, tiles, kind) | tiles_by_key
    return list(tiles_by_key.values())
