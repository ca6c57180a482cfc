"""`optcnn`: the optima of OptCNN's costs, under several assumptions of what the backward hides.

How much of the all-reduces is hidden depends on the plan, which the costs do not know of: so the optimum is
found for each assumption, and what simulates fastest is the answer.
"""

from __future__ import annotations

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.configurations import Configuration
from raddle.searches.grids import Tiles
from raddle.searches.groups import Group
from raddle.searches.optcnn.method import OVERLAPS, choose_configurations
from raddle.searches.optcnn.tables import tables
from raddle.searches.plan_space import PlanSpace
from raddle.searches.ranking import fastest_first
from raddle.searches.settings import SearchResult, Settings
from raddle.searches.starts import first_devices, shift_to_stages

# Devices up to which the tables have splits of sums: there are many more of them.
MOST_SUMS = 64


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """The optimum whose simulation is fastest."""
    space = PlanSpace(graph, cluster, settings)
    ranked = fastest_first(space, optima(space))
    if not ranked:
        raise InputError(
            f"no optimum of OptCNN's costs is a plan for '{graph.name}' on '{cluster.name}': "
            "use another method."
        )
    name, tiles = next(iter(ranked.items()))
    return SearchResult(tiles, name, stopped="optimum")


def optima(space: PlanSpace) -> dict[str, Tiles]:
    """OptCNN's optimum for each share of synchronisation that is not hidden; equal ones once."""
    settings = space.settings
    wanted = {id(space.groups[g]): own.degrees for g, own in space.pinned.items()}

    def allowed(group: Group, configuration: Configuration) -> bool:
        return wanted.get(id(group), configuration.degrees) == configuration.degrees

    found: dict[str, Tiles] = {}
    for reduction in (
        [False, True] if settings.reduction and space.device_count <= MOST_SUMS else [False]
    ):
        base = tables(
            space.graph, space.cluster, powers=settings.powers_of_two, reduction=reduction,
            bn=settings.bn, profile=settings.profile, found_groups=space.groups, allowed=allowed,
        )  # fmt: skip
        seen = set()
        for overlap in OVERLAPS:
            chosen, solution = choose_configurations(base.overlapped(overlap))
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
        if space.device_count % stages == 0:
            for overlap, part in _chosen(space, space.device_count // stages).items():
                found[f"{stages} x optcnn, sync {overlap:g}"] = shift_to_stages(space, stages, part)
    return found


def _chosen(space: PlanSpace, count: int) -> dict[float, list[Configuration]]:
    """OptCNN's optima for the first devices, by the share of synchronisation that is not hidden."""
    settings = space.settings
    base = tables(
        space.graph, first_devices(space.cluster, count), powers=settings.powers_of_two, bn=settings.bn,
        profile=settings.profile, found_groups=space.groups,
    )  # fmt: skip
    return {overlap: choose_configurations(base.overlapped(overlap))[0] for overlap in (0.5, 0.1)}
