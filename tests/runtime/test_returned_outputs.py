"""A training step returns the loss alone: outputs of the module are freed after their last use."""

from __future__ import annotations

import torch
from torch import nn

import raddle
from raddle.graph.supervised import supervised
from raddle.plans.notation import read_tiles
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.runtime.build_actions import build_actions


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(x)
        return self.second(hidden), hidden.exp()


def loss(output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return output[0].square().mean()


def test_only_evaluation_keeps_outputs() -> None:
    graph = raddle.capture(TwoOutputs(), (torch.randn(6, 4),), supervised(loss, targets=0))
    assert len(graph.outputs) == 2
    plan = Plan(read_tiles(graph, "".join(f"{op.name}: @0\n" for op in graph.ops)), devices=1)
    results = {}
    for train in (True, False):
        actions = build_actions(lower(graph, plan, train=train), 0, torch.device("cpu"))
        results[train] = set(actions.outputs)
    assert results == {True: set(), False: set(graph.outputs)}


def test_a_model_with_outputs_that_the_loss_ignores_trains() -> None:
    torch.manual_seed(0)
    model, x = TwoOutputs(), torch.randn(6, 4)
    graph = raddle.capture(model, (x,), supervised(loss, targets=0))
    plan = Plan(read_tiles(graph, "".join(f"{op.name}: @0\n" for op in graph.ops)), devices=1)
    expected = float(loss(model(x)).detach())
    trainer = raddle.parallelize(
        model,
        lambda p: torch.optim.SGD(p, lr=0.1),
        plan=plan,
        graph=graph,
        loss=supervised(loss, targets=0),
        device="cpu",
    )
    assert float(trainer.step((x,))) == expected
    trainer.close()
