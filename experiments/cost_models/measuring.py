"""Plans of a group, measured, and what the cost models say of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from experiments.cost_models.costs import Costs, costs
from experiments.cost_models.here import cluster_here, devices_here, measured_profile
from experiments.cost_models.plans import Group, micro_graph, plans_of
from experiments.timing import Timed, time_plans
from raddle.api.clusters import Device
from raddle.api.costs import Profile
from raddle.api.models import Graph
from raddle.api.plans import Plan

ROUNDS = 7  # blocks of steps of each plan, in turn with the others'
QUICK_ROUNDS = 5


class Prepared(NamedTuple):
    """What both networks share."""

    graph: Graph
    plans: Mapping[str, Plan]
    devices: tuple[Device, ...]
    profile: Profile


class Found(NamedTuple):
    """One plan: its name, what it took, and what was predicted."""

    group: str
    name: str
    kind: str
    timed: Timed
    costs: Costs


@cache
def prepared(group: Group, quick: bool) -> Prepared:
    graph = group.graph()
    plans = plans_of(group, graph, quick=quick)
    devices = devices_here(group.ranks, quick=quick)
    profile = measured_profile(group, graph, plans, devices[0].kind, quick=quick)
    return Prepared(graph, plans, devices, profile)


def measured(group: Group, rate: str | None, *, quick: bool) -> list[Found]:
    """InputError where a lab is asked for and cannot be."""
    graph, plans, devices, profile = prepared(group, quick)
    on = cluster_here(devices, rate, quick=quick)
    timed = time_plans(
        group.spec, graph, plans, ranks=group.ranks, rate=rate,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
    )  # fmt: skip
    return [
        Found(
            group.name, name, kind_of(name, plan), timed[name],
            costs(micro_graph(graph, plan), plan, on, profile),
        )
        for name, plan in plans.items()
    ]  # fmt: skip


def kind_of(name: str, plan: Plan) -> str:
    """For whom a model is better or worse."""
    if plan.stages:
        return "pipelines"
    if plan.parsed_sync.has_servers:
        return "servers and shards"
    return "random tiles" if name.startswith("random") else "tiles of a method"
