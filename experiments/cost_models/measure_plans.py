"""Measures the plans of a PlanGroup and computes their costs under all cost models.

A PlanGroup, here *group*, is one model on some ranks, whose plans are compared (plans.py).
"""

# on: the cluster, as measured, for which costs are predicted

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from experiments.cost_models.costs import Costs, costs
from experiments.cost_models.local_cluster import measure_cluster, measure_profile, probe_devices
from experiments.cost_models.plans import PlanGroup, distinct_plans, micro_batch_graph
from experiments.timing import StepTimes, time_plans
from raddle.api.clusters import Device
from raddle.api.costs import Profile
from raddle.api.models import Graph
from raddle.api.plans import Plan

ROUNDS = 7  # blocks of steps of each plan; plans take turns
QUICK_ROUNDS = 5


class PreparedGroup(NamedTuple):
    """The plans and measurements of a group that are the same with and without a lab."""

    graph: Graph
    plans: Mapping[str, Plan]
    devices: tuple[Device, ...]  # one per rank, as probed
    profile: Profile  # measured seconds of the plans' tiles


class MeasuredPlan(NamedTuple):
    """A plan with its measured step times and its predicted costs."""

    group: str  # name of its PlanGroup
    name: str  # of the plan
    kind: str  # see plan_kind
    times: StepTimes
    costs: Costs


@cache
def prepare_group(group: PlanGroup, quick: bool) -> PreparedGroup:
    """Makes the plans of a group and measures devices and operators.

    Cached, because both parts of the experiment (with and without a lab) use the same.
    """
    graph = group.graph()
    plans = distinct_plans(group, graph, quick=quick)
    devices = probe_devices(group.ranks, quick=quick)
    profile = measure_profile(group, graph, plans, devices[0].kind, quick=quick)
    return PreparedGroup(graph, plans, devices, profile)


def measure_group(group: PlanGroup, rate: str | None, *, quick: bool) -> list[MeasuredPlan]:
    """Measures all plans of a group, in a lab if `rate` is given; InputError if there can be no lab."""
    graph, plans, devices, profile = prepare_group(group, quick)
    on = measure_cluster(devices, rate, quick=quick)
    timed = time_plans(
        group.spec, graph, plans, ranks=group.ranks, rate=rate,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
    )  # fmt: skip
    return [
        MeasuredPlan(
            group.name, name, plan_kind(name, plan), timed[name],
            costs(micro_batch_graph(graph, plan), plan, on, profile),
        )
        for name, plan in plans.items()
    ]  # fmt: skip


def plan_kind(name: str, plan: Plan) -> str:
    """Returns the kind of a plan, as the table of errors groups them.

    has_servers is also true of sharded parameters: each holder is the server of its shard.
    """
    if plan.stages:
        return "pipelines"
    if plan.parsed_sync.has_servers:
        return "servers and shards"
    return "random tiles" if name.startswith("random") else "tiles of a method"
