"""The search of `optcnn`: finds optima of OptCNN's costs for several assumed exposed shares.

The exposed share is the fraction of the all-reduces' time that is not hidden behind the backward. It
depends on the whole plan, which OptCNN's costs do not see. So the optimum is found for each assumed exposed
share, and the plan that simulates fastest is taken.
"""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.searches.configurations import Configuration
from raddle.searches.grids import Tiles
from raddle.searches.groups import Group
from raddle.searches.optcnn.method import EXPOSED_SHARES, choose_configurations
from raddle.searches.optcnn.tables import build_tables
from raddle.searches.plan_space import PlanSpace
from raddle.searches.ranking import fastest_first
from raddle.searches.settings import SearchResult, Settings
from raddle.searches.starts import first_devices, shift_to_stages, simple_result

# Up to this many devices, summed dimensions may be split: this gives many more configurations.
MAX_DEVICES_FOR_SUMS = 64


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """Returns the optimum whose simulated step is shortest.

    It is a simple plan if the time ends before any optimum is known.
    """
    settings = settings.with_running_clock()
    space = PlanSpace(graph, cluster, settings)
    try:
        ranked = fastest_first(space, optima(space))
    except OutOfTime:
        return simple_result(space)
    if not ranked:
        raise InputError(
            f"no optimum of OptCNN's costs is a plan for '{graph.name}' on '{cluster.name}': "
            "use another method."
        )
    name, tiles = next(iter(ranked.items()))
    stopped = "budget" if settings.running_clock.expired else "optimum"
    return SearchResult(tiles, name, stopped=stopped)


def optima(space: PlanSpace) -> dict[str, Tiles]:
    """Returns OptCNN's optimum for each exposed share, as tiles by name; equal optima are there once.

    When the time of the search is used up, the optima so far are returned. Raises OutOfTime if none are.
    """
    settings, clock = space.settings, space.settings.running_clock
    pinned_degrees = {id(space.groups[g]): pinned.degrees for g, pinned in space.pinned.items()}

    def allowed(group: Group, configuration: Configuration) -> bool:
        return pinned_degrees.get(id(group), configuration.degrees) == configuration.degrees

    tiles_by_name: dict[str, Tiles] = {}
    for reduction in (
        [False, True]
        if settings.reduction and space.device_count <= MAX_DEVICES_FOR_SUMS
        else [False]
    ):
        try:
            base = build_tables(
                space.graph, space.cluster, powers_of_two=settings.powers_of_two, reduction=reduction,
                bn=settings.bn, profile=settings.profile, groups=space.groups, allowed=allowed,
                look=clock.look,
            )  # fmt: skip
        except OutOfTime:
            if not tiles_by_name:
                raise
            break
        seen = set()  # choices of configurations
        for exposed in EXPOSED_SHARES:
            if tiles_by_name and clock.expired:
                return tiles_by_name
            chosen, solution = choose_configurations(base.with_exposed(exposed), clock)
            if solution.choice not in seen:
                seen.add(solution.choice)
                # OptCNN's costs assume the first devices; a pinned group has the devices of its pin.
                configurations = [space.pinned.get(g, c) for g, c in enumerate(chosen)]
                # -k: summed dimensions, whose usual letter is k, may be split. sync 0.5: the exposed share
                # of the all-reduces is taken to be 0.5.
                name = f"optcnn{'-k' if reduction else ''}, sync {exposed:g}"
                tiles_by_name[name] = space.tiles(configurations)
    return tiles_by_name


def staged_optima(space: PlanSpace) -> dict[str, Tiles]:
    """Returns tiles in 2 or 4 stages, each stage with OptCNN's optimum for its part of the devices.

    A stage is a run of groups with devices of its own (starts.py); there are no micro-batches. When the
    clock expires, the tiles so far are returned.
    """
    tiles_by_name: dict[str, Tiles] = {}
    if not space.cluster.homogeneous:
        return tiles_by_name
    for stages in (2, 4):
        if space.device_count % stages == 0 and not space.settings.running_clock.expired:
            for exposed, configurations in _staged_choices(
                space, space.device_count // stages
            ).items():
                tiles_by_name[f"{stages} x optcnn, sync {exposed:g}"] = shift_to_stages(
                    space, stages, configurations
                )
    return tiles_by_name


def _staged_choices(space: PlanSpace, count: int) -> dict[float, list[Configuration]]:
    """Returns OptCNN's optima for the first `count` devices, by exposed share."""
    settings = space.settings
    base = build_tables(
        space.graph, first_devices(space.cluster, count), powers_of_two=settings.powers_of_two,
        bn=settings.bn, profile=settings.profile, groups=space.groups,
        look=settings.running_clock.look,
    )  # fmt: skip
    exposed_shares = (0.5, 0.1)
    return {  # [0]: the configurations, without the Solution
        exposed: choose_configurations(base.with_exposed(exposed), settings.running_clock)[0]
        for exposed in exposed_shares
    }
