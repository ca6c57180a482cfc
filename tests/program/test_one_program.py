"""One and the same program is checked, simulated and run, so predictions are about what is executed.

Losses and parameters are compared with plain PyTorch, bytes with what the transport has sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_plans import random_plan, train_plain
from small_models import make_plan, small
from torch import Tensor, nn

from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Key, Move, Program, Reduce, message_bytes
from raddle.runtime.threads import Result, run_threads
from raddle.simulation.memory.check_memory import check_memory
from raddle.simulation.timeline import simulate

Batches = list[list[tuple[list[Tensor], list[Tensor]]]]  # by step and micro-batch


class Net(nn.Module):
    """x[6 3 9 8] -> conv1[6 6 9 8], norm, relu -> conv2[6 4 5 4], relu -> fc1[6 10], relu -> fc2[6 5]"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 4, 3, stride=2, padding=1)
        self.fc1, self.fc2 = nn.Linear(80, 10), nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv1(x)))
        x = torch.relu(self.conv2(x)).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


class Case:
    """A model, its graph, and batches for two steps of two micro-batches."""

    def __init__(
        self, model: nn.Module, loss: Callable[..., Tensor], inputs: list[Tensor], targets: list[Tensor]
    ) -> None:  # fmt: skip
        self.model, self.loss = model.train(), loss
        self.graph: Graph = capture(
            self.model, (*inputs, *targets), loss and supervised(loss, targets=len(targets))
        )
        generator = torch.Generator().manual_seed(7)

        def another(x: Tensor) -> Tensor:
            if not x.is_floating_point():
                return x
            return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)

        self.batches: Batches = [
            [([another(x) for x in inputs], targets) for _ in range(2)] for _ in range(2)
        ]

    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)

    @cache  # noqa: B019 - a case lives as long as the tests
    def plain(self, steps: int, microbatches: int) -> tuple[list[float], dict[str, Tensor]]:
        batches = [micros[:microbatches] for micros in self.batches[:steps]]
        return train_plain(self.model, self.loss, batches, self.optimizer)

    def run(self, program: Program) -> Result:
        def feed(key: Key) -> dict[str, Tensor]:
            inputs, targets = self.batches[key.step][key.micro_batch]
            return dict(zip(self.graph.inputs, [*inputs, *targets], strict=True))

        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return run_threads(program, state, self.optimizer, feed)


@cache
def case(name: str) -> Case:
    if name == "net":
        torch.manual_seed(0)
        x, target = torch.randn(6, 3, 9, 8).double(), torch.arange(6) % 5
        return Case(Net().double(), nn.functional.cross_entropy, [x], [target])
    work, _ = small(name)
    return Case(work.model, work.loss.criterion, list(work.batch[:-1]), [work.batch[-1]])


def sent(program: Program) -> dict[tuple[int, int], int]:
    """By pair of devices, the bytes that the program sends."""
    total: dict[tuple[int, int], int] = {}
    for i in program.instructions:
        for m in i.messages if isinstance(i, Move) else ():
            way = (m.source, m.target)
            total[way] = total.get(way, 0) + message_bytes(program, i, m)
    return total


def assert_same(
    graph: Graph, result: Result, losses: list[float], state: dict[str, Tensor]
) -> None:
    assert result.losses == pytest.approx(losses, rel=1e-9)
    assert state.keys() - graph.aliases.keys() == result.state.keys()
    for name, tensor in result.state.items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-9, atol=1e-9)


TILES = {
    "conv1": "h/(4,3,2) @0-2",  # with a halo of one row each way
    "norm.moments": "h/(4,3,2) @0-2",  # global statistics: merged over three devices
    "norm": "h/(2,4,3) @0-2",
    "norm.running": "c/(4,2) @3,1",
    "relu": "c/(4,2) @2,0",
    "conv2": "n/2 h/(3,2) @0-3",  # stride 2, halos again
    "relu_1": "n/(4,2) @3,1",
    "reshape": "n/(4,2) @3,1",
    "fc1": "k/2 @1,2",  # partial sums
    "relu_2": "[0:6 0:3]@0 [0:2 3:10]@1 [2:6 3:10]@3",
    "fc2": "c/(3,2) x2 @0-3",  # two copies of each part
}


def test_one_program_is_checked_simulated_and_run() -> None:
    net = case("net")
    tiles = {op.name: "@2" for op in net.graph.ops} | TILES
    program = lower(
        net.graph, make_plan(net.graph, tiles, 4, microbatches=2, steps=2, bn="microbatch")
    )
    assert "norm.moments" in program.variants[0].merges
    assert "fc1" in program.variants[0].merges
    assert any(isinstance(i, Reduce) for i in program.instructions)

    machine = cluster("p100:2x2")
    check(program)
    check_memory(program, machine)
    timeline = simulate(program, machine)
    result = net.run(program)

    assert_same(net.graph, result, *net.plain(2, 2))
    assert result.sent == timeline.bytes_by_pair() == sent(program)
    assert timeline.step_seconds > 0


def test_it_fails_when_the_program_is_another() -> None:
    """The comparison can fail: with local batch statistics, the computation is another."""
    net = case("net")
    local = {"norm": "h/(4,3,2) @0-2", "norm.running": "@0"}  # with the statistics
    tiles = {op.name: "@2" for op in net.graph.ops} | TILES | local
    program = lower(net.graph, make_plan(net.graph, tiles, 4, microbatches=2, steps=2, bn="local"))
    with pytest.raises(AssertionError):
        assert_same(net.graph, net.run(program), *net.plain(2, 2))


@settings(max_examples=48, phases=[Phase.generate])  # to shrink would take minutes
@given(
    model=st.sampled_from(["net", "mlp-tiny", "lenet-tiny", "gpt-tiny"]),
    devices=st.integers(2, 4),
    seed=st.integers(0, 100_000),
    sync=st.sampled_from(
        [
            "allreduce",
            "server",
            "sharded",
            "sharded:parameters",
            "ps:one",
            "ps:greedy,slice=9",
            "p3:slice=7",
            "p3:collective,slice=7",
        ]
    ),
    steps=st.integers(1, 2),
    microbatches=st.integers(1, 2),
)
def test_random_plans_equal_the_module(
    model: str, devices: int, seed: int, steps: int, microbatches: int, **more: Any
) -> None:
    chosen = case(model)
    more.update(steps=steps, microbatches=microbatches)
    program = lower(chosen.graph, random_plan(chosen.graph, devices, seed, **more))
    check(program)
    result = chosen.run(program)
    assert_same(chosen.graph, result, *chosen.plain(steps, microbatches))
    assert result.sent == simulate(program, cluster("p100:1x4")).bytes_by_pair() == sent(program)
