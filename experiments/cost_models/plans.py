"""Makes the plans that are measured: of every method, pipelines, several kinds of sync, and random ones.

All are made for devices of assumed speed at the lab's rate. So they do not depend on a measurement and
are the same with and without the lab. The random ones draw a configuration for every group of layers,
as FlexFlow's search does (arXiv 1807.05358, section 6).
"""

# on: the cluster that plans are made for

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from raddle.api.clusters import Cluster, Network, build_cluster, cluster, cores
from raddle.api.lab import parse_rate
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.planning import METHODS, SearchResult, Settings, build_plan, run_method
from raddle.api.plans import Plan, validate, write_tiles
from raddle.api.programs import lower
from raddle.api.searching import PlanSpace
from raddle.errors import InputError

RATE = "500mbit"  # of the link of each host of the lab
LATENCY = 3e-4  # seconds; assumed while plans are made (predictions use measured links)
BUDGET = 2.0  # seconds that a search may take
# Sync kinds measured besides all-reduce: parameter servers, servers of slices with priority, ZeRO-2.
SYNCS = ("ps", "p3", "sharded")
SCHEDULES = (("gpipe", 2), ("gpipe", 4), ("1f1b", 4))  # with number of micro-batches
QUICK_METHODS = ("data", "owt", "layerwise", "spatial", "filter-horizontal", "optcnn")


class PlanGroup(NamedTuple):
    """A model on some ranks, whose plans are compared with each other. (It is no group of operators.)"""

    function: str  # of models.py
    batch: int
    ranks: int
    random_count: int  # number of random plans

    @property
    def name(self) -> str:
        """The name in tables, such as "vgg-like, 4 ranks"."""
        return f"{self.function}-like, {self.ranks} ranks"

    @property
    def spec(self) -> str:
        """The name by which the model is loaded: file.py:function."""
        return f"{pathlib.Path(__file__).with_name('models.py')}:{self.function}"

    def graph(self) -> Graph:
        """Returns the graph of the model at the group's batch."""
        return capture_model(self.spec, self.batch)


# At most one rank per core (but two at least): if ranks share a core, their times depend on which of them
# waits when.
MAX_RANKS = max(2, min(4, cores()))
QUICK = (PlanGroup("alexnet", 16, 2, 2),)
FULL = (
    PlanGroup("alexnet", 16, 2, 3),
    PlanGroup("vgg", 8, MAX_RANKS, 3),
    PlanGroup("resnet", 16, 2, 3),
    PlanGroup("unet", 4, MAX_RANKS, 3),
)


def assumed_cluster(ranks: int) -> Cluster:
    """Returns a cluster like the lab, with one device of assumed speed on each host."""
    device = cluster(f"local:{ranks}").devices[0]
    network = Network(parse_rate(RATE) / 8, LATENCY)
    # a node: its devices, the link between them, the network to other nodes
    hosts = [([replace(device, node=a)], None, network) for a in range(ranks)]
    return build_cluster(f"{ranks} hosts at {RATE}", hosts)


def micro_batch_graph(graph: Graph, plan: Plan) -> Graph:
    """Returns the graph of one micro-batch, which the plan's tiles refer to."""
    return graph.for_batch(-(-graph.batch // plan.microbatches))


def distinct_plans(group: PlanGroup, graph: Graph, *, quick: bool = False) -> dict[str, Plan]:
    """Returns all applicable plans by name, without duplicates."""
    on = assumed_cluster(group.ranks)
    distinct: dict[str, Plan] = {}
    seen: set[tuple[object, ...]] = set()
    for name, plan in _candidates(group, graph, on, quick=quick):
        tiles = write_tiles(micro_batch_graph(graph, plan), plan.tiles)
        key = (tiles, plan.sync, plan.bucket, plan.schedule, plan.workers)
        if key not in seen:
            seen.add(key)
            distinct[name] = replace(plan, optimizer="momentum")
    return distinct


def _candidates(
    group: PlanGroup, graph: Graph, on: Cluster, *, quick: bool
) -> Iterator[tuple[str, Plan]]:
    """Yields names and plans; some plans may be equal."""
    # bn="local": each device takes the batch-norm statistics of its own samples, as in DDP
    settings = Settings(budget=BUDGET, bn="local", sync="allreduce")
    for method in QUICK_METHODS if quick else METHODS:
        plan = _plan_of_method(graph, on, method, settings)
        if plan is not None:
            yield method, plan
    data = _plan_of_method(graph, on, "data", settings)
    if data is not None:
        for sync in SYNCS[:2] if quick else SYNCS:
            yield f"data, {sync}", replace(data, sync=sync)
        # bucket 0: the gradient of each parameter is all-reduced by itself
        yield "data, a bucket a parameter", replace(data, bucket=0)
    for schedule, count in SCHEDULES[1:] if quick else SCHEDULES:
        pipeline_settings = replace(
            settings, schedule=schedule, microbatches=count, stages=group.ranks
        )
        plan = _plan_of_method(graph, on, "pipeline", pipeline_settings)
        if plan is not None:
            yield f"{schedule}, {count} micro-batches", plan
    yield from random_plans(group, graph, on, settings)


def _plan_of_method(graph: Graph, on: Cluster, method: str, settings: Settings) -> Plan | None:
    """Returns the plan of a method; None if the method does not apply."""
    try:
        search_result = run_method(graph, on, method, settings)
        return build_plan(graph, on, method, search_result, settings)
    except InputError:
        return None  # for example, too few samples for so many stages


def random_plans(
    group: PlanGroup, graph: Graph, on: Cluster, settings: Settings
) -> Iterator[tuple[str, Plan]]:
    """Yields random plans, with names: each group of operators is split by random degrees.

    Degrees are the numbers of parts of each letter (dimension).
    A PlanSpace (raddle/searches/plan_space.py) numbers the groups; `degrees(g)`: all that group g may have.
    """
    space = PlanSpace(graph, on, settings)
    for seed in range(group.random_count):
        rng = random.Random(seed)
        chosen = [
            space.on_random_devices(rng.choice(space.degrees(g)), rng)
            for g in range(len(space.groups))
        ]
        plan = build_plan(graph, on, "random", SearchResult(space.tiles(chosen)), settings)
        try:
            validate(plan, graph)
            lower(graph, plan)  # only to see whether it raises InputError
        except InputError:
            continue  # these tiles make no valid plan
        yield f"random {seed}", plan
