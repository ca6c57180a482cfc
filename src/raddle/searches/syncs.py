"""Which way to synchronise parameters: P3 where the simulation says that it pays, else all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raddle.clusters import Cluster
from raddle.plan.pipelining import is_asynchronous
from raddle.plan.plan import Plan

MARGIN = 0.03  # what threads and small messages cost beside the compute is not simulated


def chosen_sync(plan: Plan, cluster: Cluster, step: Callable[[Plan], float]) -> str:
    """`step(plan)` gives simulated seconds.

    Slices travel through the host, so P3 is for devices on nodes of their own: inside of a node they
    have better ways.
    """
    nodes = {device.node for device in cluster.devices}
    apart = 1 < len(nodes) == len(cluster.devices)
    if not apart or is_asynchronous(plan):
        return "allreduce"
    plain, urgent = (step(replace(plan, sync=sync)) for sync in ("allreduce", "p3"))
    return "p3" if urgent < (1 - MARGIN) * plain else "allreduce"
