"""The searches by name: `optcnn`, `flexflow`, `auto`; each returns its own answer, good or bad."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.searches.attempts import Attempts
from raddle.searches.auto.method import MOST_DEVICES, Auto
from raddle.searches.configurations import Configuration
from raddle.searches.flexflow.method import flexflow
from raddle.searches.groups import Group
from raddle.searches.optcnn.method import OVERLAPS, choose
from raddle.searches.optcnn.tables import tables
from raddle.searches.placing import Tiles
from raddle.searches.planspace import PlanSpace
from raddle.searches.settings import Found, Settings
from raddle.searches.starts import (
    Method,
    baseline_starts,
    expert_starts,
    first_devices,
    shifted,
)
from raddle.searches.stepping import simulated_step
from raddle.simulation.fast.coverage import unsupported
from raddle.simulation.fast.evaluator import Evaluator

MOST_SUMS = (
    64  # devices up to which OptCNN's tables have splits of sums: there are many more of them
)


def search(
    graph: Graph, cluster: Cluster, method: str, settings: Settings, methods: Mapping[str, Method]
) -> Found:
    """What a search finds; `methods` are the baselines that it may start from."""
    if method == "auto":
        able = {"optcnn": optima}
        if len(cluster.devices) <= MOST_DEVICES:
            able["staged optcnn"] = staged_optima
        return Auto(graph, cluster, settings, methods, able).search()
    space = PlanSpace(graph, cluster, settings)
    if method == "optcnn":
        return _optcnn(space)
    if len(cluster.devices) > MOST_DEVICES:
        raise InputError(
            f"flexflow searches on up to {MOST_DEVICES} devices, '{cluster.name}' has "
            f"{len(cluster.devices)}: use optcnn or auto."
        )
    attempts = Attempts()
    baselines = {k: v for k, v in methods.items() if k in ("data", "owt")}
    starts = baseline_starts(space, baselines, attempts)
    starts |= _best_first(space, optima(space))
    starts |= _best_first(space, expert_starts(space) | staged_optima(space), most=3)
    return replace(flexflow(graph, cluster, settings, starts), failed=tuple(attempts.failures))


def optima(space: PlanSpace) -> dict[str, Tiles]:
    """OptCNN's optimum for each share of synchronisation that is not hidden; equal ones once."""
    settings = space.settings
    wanted = {id(space.groups[g]): own.degrees for g, own in space.pinned.items()}

    def allowed(group: Group, configuration: Configuration) -> bool:
        return wanted.get(id(group), configuration.degrees) == configuration.degrees

    found: dict[str, Tiles] = {}
    for reduction in [False, True] if settings.reduction and space.count <= MOST_SUMS else [False]:
        base = tables(
            space.graph, space.cluster, powers=settings.powers, reduction=reduction,
            bn=settings.bn, profile=settings.profile, found_groups=space.groups, allowed=allowed,
        )  # fmt: skip
        seen = set()
        for overlap in OVERLAPS:
            chosen, solution = choose(base.overlapped(overlap))
            if solution.choice not in seen:
                seen.add(solution.choice)
                own = [space.pinned.get(g, c) for g, c in enumerate(chosen)]
                name = f"optcnn{'-k' if reduction else ''}, sync {overlap:g}"
                found[name] = space.tiles(own)
    return found


def staged_optima(space: PlanSpace) -> dict[str, Tiles]:
    """OptCNN's optimum for a half or a quarter of the devices, in as many runs side by side."""
    found: dict[str, Tiles] = {}
    if not space.cluster.homogeneous:
        return found
    for stages in (2, 4):
        if space.count % stages == 0:
            for overlap, part in _chosen(space, space.count // stages).items():
                found[f"{stages} x optcnn, sync {overlap:g}"] = shifted(space, stages, part)
    return found


def _chosen(space: PlanSpace, count: int) -> dict[float, list[Configuration]]:
    """OptCNN's optima for the first devices, by the share of synchronisation that is not hidden."""
    settings = space.settings
    base = tables(
        space.graph, first_devices(space.cluster, count), powers=settings.powers, bn=settings.bn,
        profile=settings.profile, found_groups=space.groups,
    )  # fmt: skip
    return {overlap: choose(base.overlapped(overlap))[0] for overlap in (0.5, 0.1)}


def _optcnn(space: PlanSpace) -> Found:
    """The optimum whose simulation is fastest."""
    ranked = _best_first(space, optima(space))
    if not ranked:
        raise InputError(
            f"no optimum of OptCNN's costs is a plan for '{space.graph.name}' on '{space.cluster.name}': "
            "use another method."
        )
    name, tiles = next(iter(ranked.items()))
    return Found(tiles, name, stopped="optimum")


def _best_first(
    space: PlanSpace, found: Mapping[str, Tiles], most: int | None = None
) -> dict[str, Tiles]:
    """Plans by the time of a step; those that cannot be are left out."""
    times = dict(_times(space, found))
    return {name: found[name] for name in sorted(times, key=lambda n: times[n])[:most]}


def _times(space: PlanSpace, found: Mapping[str, Tiles]) -> Iterator[tuple[str, int]]:
    """By the evaluator or, if it refuses or on more devices than it is for, by simulation."""
    graph, cluster, settings = space.graph, space.cluster, space.settings
    evaluator: Evaluator | None = None
    for name, tiles in found.items():
        plan = Plan(tiles, space.count, **settings.plan)
        try:
            if space.count > MOST_DEVICES or unsupported(plan):
                yield name, simulated_step(graph, plan, cluster, settings.profile).time
                continue
            if evaluator is None:
                evaluator = Evaluator(graph, cluster, plan, settings.profile)
            evaluator.move(tiles)
        except InputError:
            continue
        time = evaluator.time()
        assert time is not None
        yield name, time
