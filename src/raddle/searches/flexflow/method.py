"""FlexFlow's search (arXiv 1807.05358): Markov chain Monte Carlo over splits and devices of every operator.

The search space is SOAP: samples, attributes (height, width, sequence), parameters and, unless `reduction`
is False, summed dimensions may be split. Parts may be on any devices, so that operators can run at the same
time. Several chains start from data parallelism, OptCNN's optima, expert plans (searches/starts.py) and a
random plan.

The search differs from the paper's in four points: all operators of a group share a configuration
(groups.py); the tiles of an operator are on different devices; besides uniform moves there are guided ones,
such as copying the configuration of a neighbouring group (moves.py); the simulation of a proposal stops as
soon as its rejection is certain, so the chain accepts and rejects the same proposals as with full
simulations (chain.py). With `guided=0` and only the starts "data" and "random", the first two differences
remain; the fourth only saves time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from raddle.clusters import Cluster
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.searches.attempts import Attempts
from raddle.searches.baselines.data import data
from raddle.searches.baselines.model import owt
from raddle.searches.flexflow.multi_chain import MultiChain
from raddle.searches.grids import Tiles
from raddle.searches.optcnn.optima import optima, staged_optima
from raddle.searches.plan_space import PlanSpace
from raddle.searches.ranking import MAX_EVALUATED_DEVICES, fastest_first
from raddle.searches.settings import SearchResult, Settings
from raddle.searches.starts import (
    baseline_starts,
    expert_starts,
    random_start,
    simple_result,
)
from raddle.simulation.fast.evaluator import Evaluator


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """Returns the best plan of several chains.

    They start from data parallelism, one weird trick, OptCNN's optima, the best expert plans and a random
    plan.
    """
    if len(cluster.devices) > MAX_EVALUATED_DEVICES:
        raise InputError(
            f"flexflow searches on up to {MAX_EVALUATED_DEVICES} devices, '{cluster.name}' has "
            f"{len(cluster.devices)}: use optcnn or auto."
        )
    settings = settings.with_running_clock()
    # attempts: records the starts that fail; fastest_first: sorts plans by their step time
    space, attempts = PlanSpace(graph, cluster, settings), Attempts()
    starts = baseline_starts(space, {"data": data, "owt": owt}, attempts)
    try:
        starts |= fastest_first(space, optima(space))
        # staged_optima: groups in 2 or 4 stages, each with OptCNN's optimum on its part of the devices
        settings.running_clock.look()
        starts |= fastest_first(space, expert_starts(space) | staged_optima(space), most=3)
        result = flexflow(graph, cluster, settings, starts)
    except OutOfTime:
        result = simple_result(space)
    return replace(result, failed=tuple(attempts.failures))


def flexflow(
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    starts: Mapping[str, Tiles],
    *,
    guided: float = 0.8,
    random_too: bool = True,
) -> SearchResult:
    """Returns the best plan that the chains find.

    starts: tiles by name. guided: the fraction of guided moves. random_too: also start from a random plan.
    """
    clock = settings.running_clock
    space = PlanSpace(graph, cluster, settings)
    # with_pins: puts the tiles that the user fixed in place of those of the start
    tiles_by_start = {name: space.with_pins(tiles) for name, tiles in starts.items()}
    if random_too:
        tiles_by_start["random"] = random_start(space, settings.seed)
    evaluator = _evaluator_of_a_valid_start(graph, cluster, settings, tiles_by_start.values())
    multi_chain = MultiChain(space, evaluator, clock, settings)
    with suppress(OutOfTime):  # then the chains that there are
        for name, tiles in tiles_by_start.items():
            multi_chain.add_chain(name, tiles, guided=guided)
    if not multi_chain.chains:
        raise OutOfTime("no chain could be started")
    multi_chain.run(clock.budget)
    accepted = sum(c.accepted for c in multi_chain.all_chains)
    best = multi_chain.best
    return SearchResult(
        dict(best.best),
        best.start,
        multi_chain.proposals,
        accepted,
        multi_chain.stopped,
        tuple(multi_chain.history),
    )


def _evaluator_of_a_valid_start(
    graph: Graph, cluster: Cluster, settings: Settings, starts: Iterable[Tiles]
) -> Evaluator:
    """Returns an evaluator with the first valid start. Raises the first start's InputError if none is."""
    errors = []
    for tiles in starts:
        plan = Plan(tiles, len(cluster.devices), **settings.plan_fields)
        try:
            return Evaluator(graph, cluster, plan, settings.profile, settings.running_clock.look)
        except InputError as error:
            errors.append(error)
    raise errors[0]
