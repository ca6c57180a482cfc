"""`auto` is never slower than a method that fits memory, and uses uneven parts if devices differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import small
from test_bounds import mixed
from torch import nn

from raddle.clusters import Cluster, cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.searches.baselines import BASELINES
from raddle.searches.comparison import compare, plan_and_predict
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps
from raddle.searches.settings import Settings
from raddle.simulation.memory.peaks import peak_bytes

pytestmark = pytest.mark.usefixtures("thread_clock")
MODELS = ("lenet-tiny", "alexnet-tiny", "rnnlm-tiny", "unet-tiny", "gpt-tiny", "resnet50-tiny")


def small_cards(memory: int, spec: str = "p100:1x4") -> Cluster:
    on = cluster(spec)
    return replace(on, devices=tuple(replace(d, memory=memory) for d in on.devices))


def wide() -> Graph:
    """Three large fully connected layers: most of its memory are parameters."""
    model = nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 8)
    )
    inputs = [torch.zeros(64, 1024, device="meta")]
    return capture(
        model.to("meta"), inputs, supervised(lambda y: y.square().sum(), targets=0), name="wide"
    )


MACHINES = ("p100:1x4", "k80:2x2", "local:2", "skylake-10gbe:4x1")


@pytest.mark.parametrize(
    ("model", "machine"),
    [
        pytest.param(m, c, marks=[] if (i + k) % 2 else [pytest.mark.slow])
        for i, m in enumerate(MODELS)
        for k, c in enumerate(MACHINES)
    ],
)
def test_it_is_never_slower_than_a_method_that_fits(model: str, machine: str) -> None:
    graph, on = small(model)[1], cluster(machine)
    options = Settings(budget=2, proposals=300)
    rows = compare(graph, on, [*BASELINES, "optcnn", "flexflow", "auto"], settings=options)
    (auto,) = (row for row in rows if row["method"] == "auto")
    for row in rows:
        if row["step_ms"] is not None and row["fits"]:
            assert auto["step_ms"] <= row["step_ms"] * (1 + 1e-9)
    assert auto["fits"]
    bound = auto["lower_bound_ms"]
    if bound is None:  # a pipeline with a split backward has no lower bound
        assert auto["schedule"]
    else:
        assert bound <= auto["step_ms"]


def test_it_respects_memory_where_data_parallelism_does_not_fit() -> None:
    graph = wide()
    on = small_cards(24 * 2**20)
    rows = {
        r["method"]: r for r in compare(graph, on, ["data", "auto"], settings=Settings(budget=3))
    }
    assert rows["data"]["fits"] is False
    assert rows["auto"]["fits"] is True
    plan = plan_for(graph, on, "auto", budget=3)
    assert predicted_peak(graph, plan, on) <= 24 * 2**20


def predicted_peak(graph: Graph, plan: Plan, on: Cluster) -> int:
    return max(peak_bytes(simulate_steps(graph, plan, on)))


def test_it_says_which_batch_would_fit() -> None:
    graph, on = small("unet-tiny")[1], cluster("p100:1x1")
    needed = plan_and_predict(graph, on, "data")[1]["peak_bytes"]
    with pytest.raises(InputError, match=r"a batch of about [1-3] would fit"):
        plan_for(graph, small_cards(needed // 3, "p100:1x1"), "auto", budget=2)


def test_it_computes_again_what_it_cannot_keep() -> None:
    graph = small("resnet110-tiny")[1]
    on = cluster("p100:1x1")
    needed = plan_and_predict(graph, on, "data")[1]["peak_bytes"]
    plan = plan_for(graph, small_cards(int(0.8 * needed), "p100:1x1"), "auto", budget=2)
    assert plan.recompute
    assert predicted_peak(graph, plan, on) <= 0.8 * needed


def test_it_says_by_how_much_nothing_fits_and_what_would_help() -> None:
    with pytest.raises(InputError, match=r"needs .* on device \d, which has .*devices with"):
        plan_for(wide(), small_cards(2**20), "auto", budget=2)


def test_slow_devices_get_smaller_parts() -> None:
    """On devices with speeds of three to one, `auto` is 1.2 times as fast as the best equal split."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    graph = capture(
        model.to("meta"),
        (torch.zeros(64, 3, 64, 64, device="meta"),),
        supervised(lambda y: y.square().sum(), targets=0),
        name="convolutions",
    )
    on = mixed()
    rows = compare(graph, on, [*BASELINES, "optcnn", "auto"], settings=Settings(budget=4))
    auto = rows[-1]["step_ms"]
    equal = min(row["step_ms"] for row in rows[:-1] if row["step_ms"] is not None)
    assert auto * 1.2 <= equal
    plan = plan_for(graph, on, "auto", budget=4)
    sizes = [box.shape[0] for box in plan.tiles["0"].boxes]
    assert sorted(set(sizes)) == [8, 24]  # of 64 samples, three to one


def test_the_same_seed_gives_the_same_plan() -> None:
    graph, on = small("lenet-tiny")[1], cluster("p100:1x4")
    options = Settings(budget=60, proposals=400, seed=7)
    one, two = (plan_and_predict(graph, on, "auto", settings=options)[0] for _ in range(2))
    assert one.tiles == two.tiles


@pytest.mark.parametrize("when", [1, 2, 4])
def test_an_interrupt_keeps_the_best_so_far(when: int) -> None:
    """Interrupts in the starts (when=1), in the chains (2), and while candidates are simulated (4)."""
    graph, on = small("lenet-tiny")[1], cluster("p100:1x4")
    progress: list[object] = []

    def interrupt(step: object) -> None:
        progress.append(step)
        if len(progress) == when:
            raise KeyboardInterrupt

    options = Settings(budget=60, proposals=600 if when > 2 else None, on_progress=interrupt)
    if when == 1:
        with pytest.raises(KeyboardInterrupt):  # there is nothing to keep yet
            plan_and_predict(graph, on, "auto", settings=options)
        return
    _, row, _ = plan_and_predict(graph, on, "auto", settings=options)
    assert row["stopped"] == "interrupt"
    assert row["fits"]
    assert row["step_ms"] <= plan_and_predict(graph, on, "data")[1]["step_ms"]
