"""Plans by the time of a step, the fastest first.

They are timed by the evaluator, or simulated if it refuses them or on more devices than it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from raddle.errors import InputError
from raddle.plans.plan import Plan
from raddle.searches.grids import Tiles
from raddle.searches.planspace import PlanSpace
from raddle.searches.stepping import simulated_step
from raddle.simulation.fast.coverage import unsupported
from raddle.simulation.fast.evaluator import Evaluator

MOST_DEVICES = (
    256  # that the evaluator is for: beyond, plans are simulated, and there are no chains
)


def best_first(
    space: PlanSpace, found: Mapping[str, Tiles], most: int | None = None
) -> dict[str, Tiles]:
    """Plans by the time of a step; those that cannot be are left out."""
    times = dict(_times(space, found))
    return {name: found[name] for name in sorted(times, key=lambda n: times[n])[:most]}


def _times(space: PlanSpace, found: Mapping[str, Tiles]) -> Iterator[tuple[str, int]]:
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
