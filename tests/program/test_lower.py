"""Cases that lowering once got wrong: wrong numbers, lost gradients, or too many bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_plans import train_plain
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.notation import read_tiles
from raddle.plans.plan import Plan
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Move, Program, message_bytes
from raddle.runtime.threads import run_threads


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def square(y: Tensor) -> Tensor:
    return y.square().mean()


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, weight_decay=0.01)


def lowered(graph: Graph, devices: int, tiles: dict[str, str], **more: Any) -> Program:
    """Lowers a plan from tilings as text; other operators are not split, on device 0."""
    text = "".join(f"{op.name}: {tiles.get(op.name, '@0')}\n" for op in graph.ops)
    return lower(graph, Plan(read_tiles(graph, text), devices, **more))


def trains_like_the_module(
    model: nn.Module, devices: int, tiles: dict[str, str], x: Tensor, **more: Any
) -> Program:
    model = model.double()
    graph = capture(model, (x,), supervised(square, targets=0))
    program = lowered(graph, devices, tiles, steps=2, **more)
    check(program)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    result = run_threads(program, state, sgd, lambda key: {graph.inputs[0]: x})
    losses, expected = train_plain(model, square, [[([x], [])]] * 2, sgd)
    assert result.losses == pytest.approx(losses, abs=1e-12)
    for name, value in expected.items():
        torch.testing.assert_close(result.state[name], value)
    return program


def module_of(forward: Callable[..., Tensor], **children: Any) -> nn.Module:
    """A module with this forward, and with these submodules, parameters and buffers."""

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, child in children.items():
                if isinstance(child, Tensor):
                    self.register_buffer(name, child)
                else:
                    setattr(self, name, child)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    return Given()


def test_of_the_copies_of_a_partial_tile_one_counts() -> None:
    model = nn.Sequential(nn.Linear(6, 4))
    trains_like_the_module(model, 4, {"0": "k/2 x2 @0-3"}, randn(3, 6))


def test_a_parameter_that_gets_no_gradient() -> None:
    model = module_of(lambda m, x: m.a(x) + m.b(x).detach(), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    trains_like_the_module(model, 2, {"b": "c/2 @0,1"}, randn(3, 4))


def test_rows_of_a_parameter_that_nobody_reads_decay_too() -> None:
    model = module_of(lambda m, x: x + m.table.weight[:2].sum(), table=nn.Embedding(5, 3))
    trains_like_the_module(model, 2, {"add": "n/2 @0,1"}, randn(4, 3))


def _buffers_its_input(m: Any, x: Tensor) -> Tensor:
    before = m.last.sum()
    m.last.copy_(x)
    return m.fc(x) * before


def test_a_buffer_set_to_an_input() -> None:
    model = module_of(_buffers_its_input, fc=nn.Linear(4, 4), last=torch.ones(3, 4))
    trains_like_the_module(model, 2, {"clone": "n/2 @1,0", "fc": "@1"}, randn(3, 4))


def test_whoever_reads_a_buffer_waits_for_the_message_that_brings_it() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x) - m.mean
        m.mean.add_(x.detach().mean(0))
        return y

    model = module_of(forward, fc=nn.Linear(4, 4), mean=torch.zeros(4))
    program = trains_like_the_module(model, 2, {"sub": "@1"}, randn(3, 4))
    sent = [
        i for i, m in enumerate(program.instructions) if isinstance(m, Move) and m.value == "add"
    ]
    readers = [r for r in program.instructions if getattr(r, "op", "") == "sub" and r.phase == "F"]
    assert sent[0] in readers[1].deps


def sent_bytes(program: Program) -> int:
    moves = [i for i in program.instructions if isinstance(i, Move)]
    return sum(message_bytes(program, move, m) for move in moves for m in move.messages)


def test_parts_on_one_device_are_summed_before_they_are_sent() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).double(), randn(512, 64)
    graph = capture(model, (x,), supervised(square, targets=0))
    whole = lowered(graph, 2, {"0": "@0", "1": "@1"})
    parts = lowered(graph, 2, {"0": "k/2 @0,0", "1": "@1"})
    assert sent_bytes(parts) == sent_bytes(whole)


@pytest.mark.parametrize(
    "tiles",
    [
        {"1.moments": "n/2 @0,0", "1": "n/2 @0,0"},
        {"1.moments": "n/2 @0,1", "1": "@2"},
    ],
)
def test_local_statistics_stay_with_their_samples(tiles: dict[str, str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    graph = capture(model, (torch.randn(8, 4),), supervised(square, targets=0))
    with pytest.raises(InputError, match="bn: local"):
        lowered(graph, 3, tiles, bn="local")


def test_local_statistics_of_one_value_are_refused() -> None:
    """PyTorch's batch norm refuses one value per channel, and its running variance would be infinite."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    graph = capture(model, (torch.zeros(4, 2, 3, 3),), supervised(square, targets=0))
    quarters = {op.name: "n/4 @0-3" for op in graph.ops if "n" in {d.name for d in op.space.dims}}
    with pytest.raises(InputError, match=r"one value of each channel of '1.moments'.*bn: global"):
        lowered(graph, 4, quarters, bn="local")
    lowered(graph, 4, quarters)
    lowered(graph, 2, dict.fromkeys(quarters, "n/2 @0,1"), bn="local")
