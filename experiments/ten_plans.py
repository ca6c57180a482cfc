"""Simulates and measures ten plans of a small network, and compares their two rankings by step time.

Two kinds of groups: a PlanGroup (cost_models/plans.py) is one model on some ranks, whose ten plans are
compared. All other groups (`changed_groups`, `g`) are operators that a search splits together. A PlanSpace
(raddle/searches/plan_space.py) numbers them: `unpinned` are the groups whose split the user has not fixed,
`degrees(g)` are the possible numbers of parts of each letter of group g, and `changes` returns the tiles
that differ when some groups get other configurations.
"""

# on: the cluster that plans are made for

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from experiments.cost_models.local_cluster import measure_cluster, measure_profile, probe_devices
from experiments.cost_models.plans import PlanGroup, assumed_cluster
from experiments.experiment import RunOptions
from experiments.rank_correlation import kendall, spearman
from experiments.timing import StepTimes, time_plans
from raddle.api.clusters import Cluster
from raddle.api.models import Graph
from raddle.api.planning import SearchResult, Settings, build_plan, run_method
from raddle.api.plans import Plan, write_tiles
from raddle.api.programs import lower
from raddle.api.results import Cell, Column, Section, Table
from raddle.api.searching import PlanSpace, random_start
from raddle.api.simulating import simulate_steps
from raddle.errors import InputError

PLAN_COUNT = 10
MAX_DRAWS = 50  # random plans drawn until ten different ones exist
# Column: name, source of its numbers, digits after the point
COLUMNS = (
    Column("plan"), Column("a step, ms", "measured"), Column("least", "measured"),
    Column("most", "measured"), Column("simulated, ms", "simulated"), Column("error, %", digits=1),
    Column("place", "measured"), Column("place, simulated", "simulated"),
)  # fmt: skip


class PlanTimes(NamedTuple):
    """Measured and simulated time of a step of one plan."""

    name: str
    measured: StepTimes
    simulated: float  # seconds

    @property
    def error(self) -> float:
        """Relative error of the simulation; negative if it predicts too short a step."""
        return self.simulated / self.measured.seconds - 1


def make_ten_plans(
    group: PlanGroup, graph: Graph, methods: Sequence[str], changed_groups: int | None
) -> dict[str, Plan]:
    """Returns ten different plans: those of the methods, then random ones.

    changed_groups: a random plan differs from data parallelism in so many groups; None: in all of them.
    """
    on = assumed_cluster(group.ranks)
    plans: dict[str, Plan] = {}
    seen = set()
    for name, plan in _candidates(graph, on, methods, changed_groups):
        key = write_tiles(graph, plan.tiles)  # the tiles as text
        if key not in seen:
            seen.add(key)
            plans[name] = plan
        if len(plans) == PLAN_COUNT:
            break
    return plans


def _candidates(
    graph: Graph, on: Cluster, methods: Sequence[str], changed_groups: int | None
) -> Iterator[tuple[str, Plan]]:
    """Yields the plans of the methods with their names, then random ones; some may be equal."""
    settings = Settings(sync="allreduce", optimizer="momentum", budget=2.0)
    for method in methods:
        try:
            yield (
                method,
                build_plan(graph, on, method, run_method(graph, on, method, settings), settings),
            )
        except InputError:
            continue  # the method does not apply here
    space, rng = PlanSpace(graph, on, settings), random.Random(0)
    for seed in range(MAX_DRAWS):
        tiles = random_start(space, seed)
        if changed_groups is not None:  # only some groups get random splits and devices
            data = run_method(graph, on, "data", settings).tiles
            drawn = rng.sample(space.unpinned, min(changed_groups, len(space.unpinned)))
            moves = {g: space.on_random_devices(rng.choice(space.degrees(g)), rng) for g in drawn}
            tiles = {**data, **space.changes(data, moves)}
        try:
            plan = build_plan(graph, on, "random", SearchResult(tiles), settings)
            lower(graph, plan)  # only to see whether it raises InputError
        except InputError:
            continue  # these tiles make no valid plan
        yield f"random {seed}", plan


def measure_plans(
    group: PlanGroup, methods: Sequence[str], changed_groups: int | None, options: RunOptions
) -> list[PlanTimes]:
    """Measures and simulates ten plans; returns them sorted by measured time.

    The operators and links for the simulation are measured on the same ranks.
    """
    graph = group.graph()
    plans = make_ten_plans(group, graph, methods, changed_groups)
    options.report("measuring operators and links", 0.1)
    devices = probe_devices(group.ranks, quick=options.quick)
    profile = measure_profile(group, graph, plans, devices[0].kind, quick=options.quick)
    on = measure_cluster(devices, None, quick=options.quick)
    options.report(f"running {len(plans)} plans", 0.5)
    timed = time_plans(
        group.spec, graph, plans, ranks=group.ranks, rounds=5 if options.quick else 9
    )
    results = [
        PlanTimes(name, timed[name], simulate_steps(graph, plan, on, profile).step_seconds)
        for name, plan in plans.items()
    ]
    return sorted(results, key=lambda result: result.measured.seconds)


def section(title: str, group: PlanGroup, results: Sequence[PlanTimes], printed: str) -> Section:
    """Returns the section with the two rankings.

    results: sorted by measured time; printed: a sentence about the paper's accuracy.
    """
    measured, simulated = [r.measured.seconds for r in results], [r.simulated for r in results]
    errors = [abs(r.error) for r in results]
    chosen = min(results, key=lambda r: r.simulated)
    text = (
        f"{len(results)} plans of a small {group.function}-like network at batch {group.batch}, on "
        f"{group.ranks} ranks of this machine. Spearman's correlation is "
        f"{spearman(measured, simulated):.2f}, Kendall's {kendall(measured, simulated):.2f}; "
        f"the simulation is {100 * sum(errors) / len(errors):.0f} % off on average, "
        f"{100 * max(errors):.0f} % at most. The plan that is simulated to be fastest, "
        f"{chosen.name}, takes {chosen.measured.seconds / min(measured):.2f} x the fastest. {printed}"
    )
    order = sorted(range(len(results)), key=simulated.__getitem__)
    # index in `results` (sorted by measured time) -> place by simulated time, from 1
    simulated_place = {index: number + 1 for number, index in enumerate(order)}
    rows: list[list[Cell]] = [
        [
            r.name, 1e3 * r.measured.seconds, 1e3 * r.measured.shortest, 1e3 * r.measured.longest,
            1e3 * r.simulated, 100 * r.error, index + 1, simulated_place[index],
        ]
        for index, r in enumerate(results)
    ]  # fmt: skip
    note = (
        "Measured: the slowest rank's time of a step, the median over blocks of steps; plans take turns "
        "block by block. Simulated: from operators and links measured on the same ranks just before."
    )
    return Section(title, text, [Table("Ten plans, the fastest first", COLUMNS, rows, note)])
