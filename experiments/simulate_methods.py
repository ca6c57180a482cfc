"""Plans a model by several methods on clusters of growing size and simulates a step of each plan.

The OptCNN and FlexFlow experiments use it. The batch grows with the devices (weak scaling).
A PlanSpace (raddle/searches/plan_space.py) has the groups of operators that a search splits; `g` is the
number of a group. Tiles are the tilings of all operators, by name.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from time import perf_counter
from typing import NamedTuple

from raddle.api.clusters import Cluster, cluster
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.planning import SearchResult, Settings, plan_and_predict
from raddle.api.plans import Plan
from raddle.api.results import Chart, Line
from raddle.api.searching import PlanSpace, Tiles, optcnn_paper, split_one_letter, stage_of_groups
from raddle.errors import InputError

PER_NODE = 4  # GPUs of a node in both papers
SYNCS = {"server": "servers", "allreduce": "all-reduce"}  # sync kind -> its name in tables


class WeakScalingCase(NamedTuple):
    """A model on `gpus` devices with `samples` samples for each of them."""

    model: str
    kind: str  # of device, as in a cluster's name: p100, k80
    gpus: int
    samples: int  # per device
    fitted: Cluster | None = None  # the first devices of this cluster, in place of the preset's

    @property
    def graph(self) -> Graph:
        """The graph of the model at the batch of all devices together."""
        return capture_graph(self.model, self.samples * self.gpus)

    @property
    def cluster(self) -> Cluster:
        """The cluster of these devices: the preset's, or the first devices of `fitted`."""
        if self.fitted is not None:
            return self.fitted.first_devices(self.gpus)
        # kind:nodes x GPUs of a node; the number of nodes is rounded up
        return cluster(f"{self.kind}:{-(-self.gpus // PER_NODE)}x{min(PER_NODE, self.gpus)}")


class SimulatedStep(NamedTuple):
    """A method's plan and what the simulator predicts for a training step of it."""

    plan: Plan
    seconds: float
    samples_per_s: float
    comm_bytes: int  # bytes between devices in a step
    fits: bool  # the plan fits the memory of the devices
    search_s: float  # seconds that it took to make the plan
    proposals: int  # changes that the search's Markov chains tried; 0 without chains
    improved_s: float  # seconds from the start of the chains to their last improvement


@lru_cache(maxsize=3)
def capture_graph(model: str, batch: int) -> Graph:
    """Returns the graph of a model; the last few are cached, because several methods need the same one."""
    return capture_model(model, batch)


@cache
def simulate_method(
    case: WeakScalingCase, method: str, sync: str, budget: float
) -> SimulatedStep | None:
    """Plans and simulates. Returns None if the method does not apply or its plan does not fit the memory.

    Results are cached, because several parts ask for the same ones. budget: seconds of search.
    """
    graph, on = case.graph, case.cluster
    settings = Settings(sync=sync, budget=budget)
    begun = perf_counter()
    try:
        search_result = (
            SearchResult(EXTRA_METHODS[method](graph, on)) if method in EXTRA_METHODS else None
        )
        prepared = perf_counter() - begun  # seconds of an extra method; about 0 for others
        # row: what is predicted for the plan, by name (step_ms, comm_bytes, ...)
        plan, row, _ = plan_and_predict(
            graph, on, method, model=case.model, settings=settings, result=search_result
        )
    except InputError:
        return None
    # the improvements of a search: (seconds, proposals, milliseconds of the best step)
    history = row.get("history") or [[0.0, 0, 0.0]]
    simulated = SimulatedStep(
        plan, row["step_ms"] / 1e3, row["samples_per_s"], row["comm_bytes"], row["fits"],
        row["search_s"] + prepared, row.get("proposals", 0), history[-1][0],
    )  # fmt: skip
    return simulated if simulated.fits else None


# -- methods that raddle itself does not offer -----------------------------------------------------


def _optcnn_paper(graph: Graph, on: Cluster) -> Tiles:
    """Returns the tiles of OptCNN with the paper's costs: parameter servers, not all-reduce."""
    # [1] is the Solution: its cost, and whether it is a proven optimum
    return optcnn_paper(graph, on)[0]


def recurrent_expert(graph: Graph, on: Cluster) -> Tiles:
    """Returns the tiles of FlexFlow's expert plan for recurrent networks.

    Nodes are data parallel, and the GPUs of a node share the layers.
    The layers of the network are cut into as many consecutive ranges (stages, with about equal work) as a
    node has GPUs; each GPU of a node computes one of them.
    """
    space = PlanSpace(graph, on, Settings())
    nodes = [on.members(a) for a in range(on.nodes)]  # the devices of each node
    # at: number of the range that group g is in. Device `at` of every node gets the group, and
    # these devices divide the samples (n).
    chosen = [
        split_one_letter(space, g, "n", [node[at] for node in nodes])
        for g, at in enumerate(stage_of_groups(space, len(nodes[0])))
    ]
    return space.tiles(chosen)


EXTRA_METHODS: dict[str, Callable[[Graph, Cluster], Tiles]] = {
    "optcnn-paper": _optcnn_paper,
    "expert": recurrent_expert,
}


# -- comparisons -----------------------------------------------------------------------------------

StepsByMethod = Mapping[tuple[str, int], SimulatedStep | None]  # by method and number of devices


def fastest(
    steps: StepsByMethod, methods: Sequence[str], count: int
) -> tuple[str, SimulatedStep] | None:
    """Returns the fastest of some methods on `count` devices, with its step; None if no plan fits."""
    applicable = [(m, s) for m in methods if (s := steps.get((m, count))) is not None]
    return min(applicable, key=lambda item: item[1].seconds) if applicable else None


def gain_over_best(
    steps: StepsByMethod, method: str, others: Sequence[str], count: int
) -> float | None:
    """Returns a method's throughput divided by that of the fastest of the others.

    None if either is missing.
    """
    step, best_other = steps.get((method, count)), fastest(steps, others, count)
    return step.samples_per_s / best_other[1].samples_per_s if step and best_other else None


def throughput_chart(
    title: str, steps: StepsByMethod, names: Mapping[str, str], note: str = ""
) -> Chart:
    """Returns a chart of samples per second over the number of devices, with one line for each method.

    names: method -> name of its line.
    """
    lines = []
    for method, name in names.items():
        points = [
            (count, s.samples_per_s)
            for (m, count), s in sorted(steps.items())
            if m == method and s is not None
        ]
        if points:
            lines.append(Line(name, points, "simulated"))
    return Chart(title, "GPUs", "samples/s", lines, log_x=True, log_y=True, note=note)
