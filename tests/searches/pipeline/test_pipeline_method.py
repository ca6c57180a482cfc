"""The method `pipeline`, and the method `auto` when memory is short."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments.gems_unet import nets
from raddle import zoo
from raddle.api.loading import capture_model
from raddle.clusters import Cluster, cluster
from raddle.clusters.topology import build_cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans import plan_file
from raddle.plans.schedule import schedule_to_text
from raddle.plans.schedules import named_schedule
from raddle.searches.comparison import plan_and_predict
from raddle.searches.pipeline.layer_graph import build_layer_graph
from raddle.searches.pipeline.method import pipeline_candidates
from raddle.searches.planning import check_pipeline
from raddle.searches.settings import Settings
from raddle.simulation.memory.peaks import peak_bytes
from raddle.verification.verify_plan import verify

pytestmark = pytest.mark.usefixtures("thread_clock")


@cache
def graph_of(name: str, batch: int) -> Graph:
    work = zoo.load(name, batch=batch)
    return capture(work.model, work.batch, work.loss, name=name)


def plan_and_simulate(
    name: str, batch: int, target: Cluster, method: str = "pipeline", **more: Any
) -> Any:
    settings = Settings(budget=60, **more)
    return plan_and_predict(graph_of(name, batch), target, method, model=name, settings=settings)


@pytest.mark.parametrize(
    "name", ["vgg16-tiny", "unet-tiny", "inception_v3-tiny", "gpt-tiny", "nmt-tiny"]
)
def test_layers_are_a_graph_without_cycles(name: str) -> None:
    graph = graph_of(name, 4)
    layer_graph = build_layer_graph(graph)
    assert sorted(n for names in layer_graph.op_names for n in names) == sorted(
        op.name for op in graph.ops
    )
    position = {op.name: at for at, op in enumerate(graph.ops)}
    first_positions = [min(position[n] for n in layer_ops) for layer_ops in layer_graph.op_names]
    for v, readers in enumerate(layer_graph.successors):
        assert all(
            first_positions[v] < max(position[n] for n in layer_graph.op_names[u]) for u in readers
        )


def test_it_has_stages_and_says_so() -> None:
    plan, row, timeline = plan_and_simulate("vgg16-tiny", 16, cluster("p100:1x4"))
    assert len(plan.stages) == row["stages"] > 1
    assert row["schedule"]
    assert plan.batch == 16
    assert timeline.program.graph.batch * plan.microbatches >= 16
    # The search is deterministic.
    assert plan_and_simulate("vgg16-tiny", 16, cluster("p100:1x4")).plan.tiles == plan.tiles


@pytest.mark.parametrize(
    "schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "gems", "chimera", "pipedream", "2bw"]
)
def test_a_schedule_can_be_asked_for(schedule: str) -> None:
    plan = plan_and_simulate("vgg16-tiny", 8, cluster("p100:1x4"), schedule=schedule).plan
    assert plan.schedule == schedule
    assert len(plan.stages) >= 2


def test_a_schedule_can_be_written() -> None:
    text = schedule_to_text(named_schedule("1f1b", 2, 2, 3))
    plan = plan_and_simulate("vgg16-tiny", 6, cluster("p100:1x2"), schedule=text).plan
    assert (plan.schedule, plan.microbatches, len(plan.stages)) == (text, 3, 2)


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("data", {"schedule": "1f1b"}, "'data' has no stages"),
        ("pipeline", {"schedule": "threaded:2"}, "name another method"),
        ("data", {"microbatches": 2}, "are for --method pipeline"),
        ("pipeline", {"schedule": "F0 B0\nF0 B0", "stages": 3}, "--stages is 3 and the written"),
        ("pipeline", {"schedule": "F0 B0", "microbatches": 4}, "--microbatches is 4 and the"),
    ],
)
def test_refuses_what_does_not_go_together(method: str, more: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_pipeline(method, Settings(**more))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"schedule": "waltz"}, "there is no schedule 'waltz'"),
        ({"microbatches": 9}, "9 micro-batches of a batch of 8"),
        ({"stages": 5}, "5 stages on 2 devices"),
        ({"schedule": "chimera", "stages": 3}, "3 stages on 2"),
    ],
)
def test_refuses_what_cannot_be(more: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan_and_simulate("vgg16-tiny", 8, cluster("p100:1x2"), **more)


def short_of_memory(target: Cluster, nbytes: int) -> Cluster:
    return replace(target, devices=tuple(replace(d, memory=nbytes) for d in target.devices))


def test_auto_finds_what_fits_where_data_does_not_and_it_trains(tmp_path: Path) -> None:
    target = cluster("local:2")
    _, row, _ = plan_and_simulate("unet-tiny", 8, target, "data")
    small = short_of_memory(target, int(0.7 * row["peak_bytes"]))
    assert not plan_and_simulate("unet-tiny", 8, small, "data").row["fits"]
    plan, auto_row, timeline = plan_and_simulate("unet-tiny", 8, small, "auto")
    assert auto_row["fits"]
    assert max(peak_bytes(timeline)) <= small.devices[0].memory
    plan_file.save(plan, timeline.program.graph, tmp_path / "plan.json")
    assert verify(str(tmp_path / "plan.json"), steps=2)["holds"]


def test_all_devices_on_one_micro_batch_after_the_other_where_memory_is_short() -> None:
    """Such a plan may have a single stage; for images of 8192² it is the fastest for a U-Net."""
    graph, plain = capture_model(nets.spec("unet", 256), 4), cluster("h200:4")
    device = replace(plain.devices[0], memory=400_000_000)
    target = build_cluster("small", [([device] * 4, plain.node_links[0], None)])
    candidates = pipeline_candidates(graph, target, Settings(budget=60), max_simulated=2)
    (sequential,) = [c for c in candidates if c.name == "1 stages, 4 micro-batches, spatial inside"]
    assert sequential.fits
    assert sequential.result.pipeline is not None
    assert sequential.result.pipeline.stages == ()


class OnePixel(nn.Module):
    """A batch norm over one pixel per sample: torch needs at least two samples to train it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), nn.Flatten(),
            nn.Linear(8, 4),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def test_micro_batches_too_small_for_the_module_are_left_out() -> None:
    loss = nn.functional.cross_entropy
    inputs, targets = [torch.randn(8, 3, 32, 32)], [torch.zeros(8, dtype=torch.long)]
    graph = capture(OnePixel(), (*inputs, *targets), supervised(loss, targets=len(targets)))
    tight = short_of_memory(cluster("v100:2"), 150_000)  # nothing fits, so everything is tried
    candidates = pipeline_candidates(graph, tight, Settings(budget=60))
    assert candidates
    assert all(c.result.pipeline is None or c.result.pipeline.graph.batch > 1 for c in candidates)


class Sized(nn.Module):
    """Uses another operator for large batches, so a micro-batch has different operators."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        result: Tensor = self.b(y.tanh() if len(x) > 2 else y.cos())
        return result


def test_micro_batches_with_other_operators_are_left_out() -> None:
    graph = capture(Sized(), (torch.zeros(4, 4),), supervised(torch.sum, targets=0))
    candidates = pipeline_candidates(graph, cluster("p100:1x2"), Settings(budget=60))
    sizes = {c.result.pipeline.graph.batch for c in candidates if c.result.pipeline is not None}
    assert sizes == {4}
    settings = Settings(schedule="1f1b", microbatches=2)
    with pytest.raises(InputError, match="other operators at 2 samples than at 4"):
        plan_and_predict(graph, cluster("p100:1x2"), "pipeline", settings=settings)


class Noisy(nn.Module):
    """Multiplies by noise that is the same for all samples: copies on several devices would differ."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(self.a(x) * torch.poisson(torch.ones(64)))
        return result


def test_what_may_be_random_has_no_copies_in_a_stage_of_several_devices() -> None:
    graph = capture(Noisy(), (torch.zeros(64, 64),), supervised(torch.sum, targets=0))
    (noise,) = graph.opaque_ops
    candidates = pipeline_candidates(graph, cluster("p100:1x4"), Settings(budget=60))
    staged = [c.result for c in candidates if len(set(c.result.tiles["a"].devices)) > 1]
    assert staged
    assert all(len(result.tiles[noise.name].devices) == 1 for result in staged)
