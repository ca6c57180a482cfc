"""A training plan adapted to the evaluation graph: legal, with parameters in place, and few bytes sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from random_plans import random_plan
from small_models import make_plan
from torch import Tensor, nn

from raddle import zoo
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.box import Box, subtract
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.adapt import adapt
from raddle.plans.match_ops import match_ops
from raddle.plans.notation import write_tiling
from raddle.plans.plan import Plan
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Move, Program, message_bytes
from raddle.searches.baselines import BASELINES
from raddle.searches.planning import plan_for
from raddle.zoo.losses import class_loss, class_loss_with_auxiliary

TINY = [name for name in zoo.names() if name.endswith("-tiny")]


def training_batch(name: str) -> int | None:
    """The zoo's, or for Inception so many samples that each of 4 devices has two values per channel."""
    return 8 if name == "inception_v3-tiny" else None


@cache
def training_graph(name: str) -> Graph:
    work = zoo.load(name, batch=training_batch(name))
    return capture(work.model.train(), work.batch, work.loss, name=name)


@cache
def evaluation_graph(name: str, batch: int | None = None) -> Graph:
    work = zoo.load(name, batch=batch)
    criterion = work.loss.criterion
    criterion = class_loss if criterion is class_loss_with_auxiliary else criterion
    return capture(
        work.model.eval(),
        work.batch,
        supervised(criterion),
        name=name,
    )


def sent_bytes(program: Program, *kinds: str) -> int:
    moves = (i for i in program.instructions if isinstance(i, Move) and i.kind in kinds)
    return sum(message_bytes(program, move, m) for move in moves for m in move.messages)


def assert_parameters_held(program: Program, training: Program) -> None:
    """Every device holds in training what it reads of a parameter in evaluation."""
    held: dict[tuple[str, int], list[Box]] = {}
    for name, regions_of_parameter in training.regions.items():
        for parameter_region in regions_of_parameter:
            for device in parameter_region.devices:
                held.setdefault((name, device), []).append(parameter_region.box)
    for op in program.graph.ops:
        weights = [
            i for i, n in enumerate(op.inputs) if program.graph.values[n].role == "parameter"
        ]
        for tile in program.plan.tiles[op.name].tiles if weights else ():
            regions = op.space.regions(tile.box)
            for name, region in ((op.inputs[i], regions[i]) for i in weights):
                if region is not None:
                    assert not subtract(region, held[name, tile.device]), (op.name, name, tile)


def adapt_and_check(
    plan: Plan, graph: Graph, other: Graph, *, scale: float = 1.0, extra: int = 0
) -> Plan:
    """The plan adapted to `other`; checks that it can run, has its parameters, and sends few bytes.

    It may send `scale` times the bytes of training, and `extra` bytes.
    """
    training = lower(graph, plan)
    result = adapt(plan, graph, other)
    program = lower(other, result, train=False)
    check(program)
    assert_parameters_held(program, training)
    for kinds in (["activation"], ["activation", "partial"]):
        assert sent_bytes(program, *kinds) <= scale * sent_bytes(training, *kinds) + extra, kinds
    return result


# -- models of the zoo ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_baselines_move_no_more_than_in_training(name: str) -> None:
    graph, other = training_graph(name), evaluation_graph(name, training_batch(name))
    for devices in (2, 3, 4):
        for method in sorted(BASELINES.keys() - {"filter-horizontal"}):  # which is `model`
            adapt_and_check(plan_for(graph, cluster(f"local:{devices}"), method), graph, other)


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("name", ["gpt-tiny", "resnet50-tiny", "rnnlm-tiny"])
def test_other_batches_move_in_proportion(name: str, batch: int) -> None:
    graph, other = training_graph(name), evaluation_graph(name, batch)
    assert graph.batch != other.batch == batch
    for method in BASELINES:
        plan = plan_for(graph, cluster("local:3"), method)
        # Parts of a sample more or less than in proportion change what lies at their edges.
        adapt_and_check(plan, graph, other, scale=1.01 * batch / graph.batch, extra=64)


@pytest.mark.parametrize("name", ["alexnet-tiny", "gpt-tiny", "nmt-tiny", "resnet50-tiny"])
def test_random_plans(name: str) -> None:
    """Random plans stay legal, and what they send is bounded by what training sends."""
    graph = training_graph(name)
    for seed in range(4):
        plan = random_plan(graph, 2 + seed % 3, seed, microbatches=1 + seed % 2)
        for other in (evaluation_graph(name), evaluation_graph(name, 3)):
            adapt_and_check(plan, graph, other, scale=1.5 * plan.microbatches, extra=64 * 1024)


def test_what_becomes_of_a_plan() -> None:
    graph, other = training_graph("alexnet-tiny"), evaluation_graph("alexnet-tiny", 5)
    plan = random_plan(
        graph, 2, 0, bn="local", sync="server:1", microbatches=4, steps=3, split_backward=True,
        recompute=(("features.0",),), fingerprint=graph.fingerprint(), predicted={"seconds": 1.0},
    )  # fmt: skip
    result = adapt(plan, graph, other)
    assert (result.bn, result.sync, result.devices) == ("local", "server:1", 2)
    assert (result.microbatches, result.steps, result.recompute) == (1, 1, ())
    assert (result.split_backward, result.predicted, result.batch) == (False, {}, 5)
    assert result.fingerprint == other.fingerprint()


# -- small modules ------------------------------------------------------------------------------------


def capture_both(
    model: nn.Module, make: Callable[[int], Tensor], batch: int, new_batch: int
) -> tuple[Graph, Graph]:
    def loss(y: Tensor) -> Tensor:
        return y.square().mean()

    graph = capture(model.train(), (make(batch),), supervised(loss, targets=0))
    return graph, capture(model.eval(), (make(new_batch),), supervised(loss, targets=0))


class Shifting(nn.Module):
    """The numbers in operator names differ: training has one operator more, evaluation another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4, affine=False)
        self.batch = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        if self.training:
            x = torch.relu(x * 2)
        x = torch.relu(self.b(self.norm(x)))
        if not self.training:
            x = x.clamp(-1, 1)
        return self.c(torch.relu(self.batch(x)))


def shifting(batch: int = 8, new_batch: int = 8) -> tuple[Graph, Graph]:
    return capture_both(Shifting(), lambda n: torch.zeros(n, 6), batch, new_batch)


def test_operators_are_not_matched_by_name() -> None:
    matches = match_ops(*shifting())
    assert {name: op.name for name, op in matches.items()} == {
        "a": "a",
        "relu": "relu",  # training: relu_1 follows
        "norm": "norm",  # by running statistics, instead of those of the batch
        "b": "b",
        "relu_1": "relu_2",
        "batch.moments": "batch.moments",  # clamp comes before
        "batch": "batch",
        "relu_2": "relu_3",
        "c": "c",
        "square": "square",
        "mean": "mean",
    }


@pytest.mark.parametrize("batch", [2, 8, 12])
def test_local_statistics_stay_local(batch: int) -> None:
    graph, other = shifting(8, batch)
    for method in ("data", "model", "layerwise"):
        plan = plan_for(graph, cluster("local:4"), method, bn="local")
        adapt_and_check(plan, graph, other, scale=max(1.0, batch / 8), extra=64)


@pytest.mark.parametrize(
    ("batch", "before", "after"),
    [
        (6, "n/4 @0-3", "n/4 @0-3"),
        (6, "n/2 c/2 @3,2,1,0", "n/2 c/2 @3,2,1,0"),
        (2, "n/4 @0-3", "n/2 @0,2"),  # parts of nothing are gone
        (1, "n/4 @0-3", "@0"),
        (2, "n/4 c/2 @0-3,0-3", "n/2 c/2 @0-1,0-1"),
        (2, "n/4 x2 @0-1,2-3,0-1,2-3", "n/2 x2 @0-1,0-1"),
        (1, "x4 @0-3", "x4 @0-3"),
        (4, "n/(2,6) @0-1", "n/(1,3) @0-1"),
        (16, "n/(1,7) @0-1", "n/(2,14) @0-1"),
        (3, "n/(1,7) @0-1", "@1"),
        (
            4,
            "[0:8 0:2 0:6]@0 [0:4 2:4 0:6]@1 [4:8 2:4 0:6]@2",
            "[0:4 0:2 0:6]@0 [0:2 2:4 0:6]@1 [2:4 2:4 0:6]@2",
        ),
    ],
)
def test_tiles_of_another_batch(batch: int, before: str, after: str) -> None:
    model = nn.Linear(6, 4)
    graph, other = capture_both(model, lambda n: torch.zeros(n, 6), 8, batch)
    plan = make_plan(graph, {"linear": before}, 4)
    result = adapt_and_check(plan, graph, other, scale=2, extra=1024)
    assert write_tiling(other.op("linear"), result.tiles["linear"]) == after


def test_samples_that_are_joined_with_tokens_are_cut_between_samples() -> None:
    """n t -> b: six samples of five tokens over four devices."""
    graph, other = training_graph("rnnlm-tiny"), evaluation_graph("rnnlm-tiny", 6)
    plan = plan_for(graph, cluster("local:4"), "data")
    adapt_and_check(plan, graph, other, extra=64)  # no activations


@pytest.mark.parametrize(
    "tiles",
    [
        "n/2 @0-1",
        "c/4 @3,2,1,0",
        "n/2 x2 @0-3",
        "[0:8 0:1]@0 [0:4 1:4]@1 [4:8 1:4]@2",
    ],
)
def test_what_is_new_stands_where_its_operand_is(tiles: str) -> None:
    graph, other = shifting()
    result = adapt_and_check(make_plan(graph, {"relu_2": tiles}, 4), graph, other)
    assert write_tiling(other.op("clamp"), result.tiles["clamp"]) == tiles


class OtherInEvaluation(nn.Module):
    """Evaluation multiplies by the transposed weight, which training does not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) if self.training else x @ self.a.weight.t() + self.a.bias)


@pytest.mark.parametrize(
    ("a", "b", "after"),
    [
        # What depends on no sample has a copy on every device that reads it.
        ("n/2 @0-1", "n/2 @0-1", {"permute": "x2 @0-1", "matmul": "n/2 @0-1", "add": "n/2 @0-1"}),
        # Device 1 holds nothing of a: its part of the sum starts where the weight is.
        ("@0", "n/2 @0-1", {"permute": "@0", "matmul": "@0", "add": "@0"}),
        # No device holds all of the weight.
        ("c/2 @0-1", "@0", {"permute": "t/2 @0-1", "matmul": "t/2 @0-1", "add": "t/2 @0-1"}),
    ],
)
def test_what_is_new_finds_its_parameters(a: str, b: str, after: dict[str, str]) -> None:
    graph, other = capture_both(OtherInEvaluation(), lambda n: torch.zeros(n, 6), 8, 8)
    plan = make_plan(graph, {"a": a, "b": b, "square": b if b == "@0" else "n/2 @0-1"}, 2)
    tiles = adapt_and_check(plan, graph, other, extra=1024).tiles
    assert {op: write_tiling(other.op(op), tiles[op]) for op in after} == after


class Positions(nn.Module):
    """Adds the first rows of a table: as many as the sequence is long."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(10, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.rows[: x.shape[1]]


@pytest.mark.parametrize(
    ("length", "after"),
    [
        (6, "t/2 @0-1"),
        (4, "t/(3,1) @0-1"),  # row 2 stays on device 0
        (8, "t/3 @0-1,0"),  # rows that training does not read are with the first holder
    ],
)
def test_rows_stay_where_they_are_held(length: int, after: str) -> None:
    model = Positions()
    graph = capture(
        model.train(), (torch.zeros(2, 6, 4),), supervised(lambda y: y.square().mean(), targets=0)
    )
    other = capture(
        model.eval(),
        (torch.zeros(2, length, 4),),
        supervised(lambda y: y.square().mean(), targets=0),
    )
    plan = make_plan(graph, {"slice": "t/2 @0-1"}, 2)
    tiles = adapt_and_check(plan, graph, other, scale=2, extra=64).tiles
    assert write_tiling(other.op("slice"), tiles["slice"]) == after


class Inverse(nn.Module):
    """Evaluation inverts the weight, for which it is needed whole."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if self.training else x @ torch.linalg.inv(self.a.weight)


def test_a_parameter_that_no_device_holds_is_refused() -> None:
    graph, other = capture_both(Inverse(), lambda n: torch.zeros(n, 4), 8, 8)
    adapt_and_check(make_plan(graph, {"a": "n/2 @0-1"}, 2), graph, other, extra=1024)
    with pytest.raises(
        InputError, match=r"'linalg_inv' .* more of 'a.weight' than any device holds"
    ):
        adapt(make_plan(graph, {"a": "c/2 @0-1"}, 2), graph, other)


class Tied(nn.Module):
    """One table, read as an embedding and as a linear layer; another that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(12, 8), nn.Embedding(5, 8)
        self.head, self.drop = nn.Linear(8, 12, bias=False), nn.Dropout(0.1)
        self.head.weight = self.table.weight
        self.place.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.drop(self.table(x) + self.place(torch.arange(x.shape[1]))))
        return y


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_tied_and_frozen_parameters(batch: int) -> None:
    graph, other = capture_both(Tied(), lambda n: torch.zeros(n, 5, dtype=torch.int64), 8, batch)
    for seed in range(20):
        adapt_and_check(
            random_plan(graph, 2 + seed % 3, seed), graph, other, scale=1.5, extra=64 * 1024
        )
