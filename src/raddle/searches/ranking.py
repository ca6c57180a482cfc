"""Sorts plans by the time of a single step, so that a search starts from the fastest of them.

The fast evaluator (simulation/fast) times the plans. The full simulation does so for clusters with very
many devices and for plans that the evaluator does not support.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from raddle.errors import InputError, OutOfTime
from raddle.plans.plan import Plan
from raddle.searches.grids import Tiles
from raddle.searches.plan_space import PlanSpace
from raddle.searches.single_step import simulate_single_step
from raddle.simulation.fast.coverage import unsupported
from raddle.simulation.fast.evaluator import Evaluator

# The evaluator is used up to this many devices. On more devices plans are simulated, which is too slow for
# the Markov chains of flexflow and auto.
MAX_EVALUATED_DEVICES = 256


def fastest_first(
    space: PlanSpace, candidates: Mapping[str, Tiles], most: int | None = None
) -> dict[str, Tiles]:
    """Returns the candidates in order of their step time, at most `most` of them.

    Candidates that are not valid plans (InputError) are left out, and those for which there is no time. If
    there is no time at all, the first candidate is returned.
    """
    times: dict[str, int] = {}
    try:
        for name, time in _times(space, candidates):
            times[name] = time
    except OutOfTime:
        if not times:
            return dict(list(candidates.items())[:1])
    return {name: candidates[name] for name in sorted(times, key=lambda n: times[n])[:most]}


def _times(space: PlanSpace, candidates: Mapping[str, Tiles]) -> Iterator[tuple[str, int]]:
    """Yields the name and the nanoseconds of a step of every valid candidate."""
    graph, cluster, settings = space.graph, space.cluster, space.settings
    evaluator: Evaluator | None = None
    clock = settings.running_clock
    for name, tiles in candidates.items():
        clock.look()
        plan = Plan(tiles, space.device_count, **settings.plan_fields)
        try:
            if space.device_count > MAX_EVALUATED_DEVICES or unsupported(plan):
                step = simulate_single_step(graph, plan, cluster, settings.profile, clock.look)
                yield name, step.time
                continue
            if evaluator is None:
                evaluator = Evaluator(graph, cluster, plan, settings.profile, clock.look)
            evaluator.move(tiles)  # gives the evaluator's plan these tiles
        except InputError:
            continue
        time = evaluator.time()
        assert time is not None
        yield name, time
