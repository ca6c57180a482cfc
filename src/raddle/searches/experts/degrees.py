"""Chooses the degrees of expert plans by simulation: how many devices share a layer or a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from raddle.clusters import Cluster
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.searches.baselines.data import data
from raddle.searches.experts.context import context
from raddle.searches.experts.megatron import megatron
from raddle.searches.experts.mesh import SplitKind
from raddle.searches.grids import Tiles
from raddle.searches.nodes import devices_per_node
from raddle.searches.plan_space import PlanSpace
from raddle.searches.predict import simulate_steps
from raddle.searches.ranking import fastest_first
from raddle.searches.settings import SearchResult, Settings
from raddle.simulation.memory.check_memory import fits
from raddle.simulation.memory.peaks import peak_bytes

SPLIT_KINDS: tuple[SplitKind, ...] = ("megatron", "context")


def search(kind: SplitKind, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """Returns the fastest degrees that fit memory; if none fit, those with the smallest peak.

    When the time of the search is used up, the fastest so far by a single step are returned.
    """
    if len(cluster.devices) == 1:
        return SearchResult(data(graph, cluster))
    settings = settings.with_running_clock()
    space, look = PlanSpace(graph, cluster, settings), settings.running_clock.look
    plans = {name: space.with_pins(tiles) for name, tiles in plans_of(kind, graph, cluster).items()}
    ranked = fastest_first(space, plans)
    best = next(iter(ranked))
    smallest: float | None = None
    with suppress(OutOfTime):
        for name, tiles in ranked.items() if len(ranked) > 1 else ():
            plan = Plan(tiles, space.device_count, batch=graph.batch, **settings.plan_fields)
            timeline = simulate_steps(graph, plan, cluster, settings.profile, look)
            peaks = peak_bytes(timeline, look=look)
            if fits(peaks, cluster):
                best = name
                break
            if smallest is None or max(peaks) < smallest:
                smallest, best = max(peaks), name
    return SearchResult(ranked[best], best, stopped="candidates")


def plans_of(kind: SplitKind, graph: Graph, cluster: Cluster) -> Mapping[str, Tiles]:
    """Returns the tiles for all degrees, by name. Raises an InputError if none is possible."""
    plans: dict[str, Tiles] = {}
    refusals: list[InputError] = []
    for degree in inner_degrees(cluster):
        try:
            if kind == "context":
                plans[f"context {degree}"] = context(graph, cluster, degree)
                continue
            plans[f"megatron {degree}"] = megatron(graph, cluster, degree, sequence=False)
            name = f"megatron {degree}, sequence parallel"
            plans[name] = megatron(graph, cluster, degree, sequence=True)
        except InputError as error:
            refusals.append(error)
    if refusals and not plans:
        raise refusals[0]
    return plans


def split_starts(space: PlanSpace) -> dict[str, Tiles]:
    """Returns the plans of megatron and context for all degrees, as starts of `auto`."""
    starts: dict[str, Tiles] = {}
    for kind in SPLIT_KINDS:
        with suppress(InputError):
            starts |= plans_of(kind, space.graph, space.cluster)
        space.settings.running_clock.look()
    return {name: space.with_pins(tiles) for name, tiles in starts.items()}


def inner_degrees(cluster: Cluster) -> list[int]:
    """Returns the divisors of the devices of a node, from 2 on.

    If nodes differ or have one device, they are the divisors of the number of all devices.
    """
    count = devices_per_node(cluster) or len(cluster.devices)
    return [degree for degree in range(2, count + 1) if count % degree == 0]
