"""Bugs that random modules and plans have found, each as a minimal test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from equality import Task
from ranks import on_threads
from small_models import make_plan
from torch import Tensor, nn

from raddle.graph.supervised import supervised


class Weighted(nn.Module):
    """y = f(w * x), so that gradients show what f does."""

    def __init__(self, function: Callable[[Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.rand(shape).double() + 0.5)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.w * x)


def task(function: Callable[[Tensor], Tensor], *shape: int, steps: int = 2) -> Task:
    model = Weighted(function, *shape)
    x = torch.randn(shape, dtype=torch.float64)
    return Task(model, [x], loss=lambda y: y.square().sum(), steps=steps)


def test_a_server_that_reads_nothing() -> None:
    """The bug: the checker refused a server that holds no tile of the parameter."""
    plain = task(torch.tanh, 2, 4)
    for tiles in ({}, {"mul": "n/2 @0-1"}):
        plain.verify(make_plan(plain.graph, tiles, 3, sync="server:2", steps=2))


def test_a_variance_whose_mean_nobody_reads() -> None:
    """The bug: no gradient went through the merge, as only the first output was considered."""
    plain = task(lambda x: x.std(1), 2, 5)
    plain.verify(make_plan(plain.graph, {"moments": "c/2 @0-1"}, 2, steps=2))


def test_the_deviation_of_equal_numbers_has_no_gradient() -> None:
    """The bug: the gradient of the square root at zero was NaN; torch's std has no gradient there."""
    plain = task(lambda x: 0 * x[:, :1] + (0 * x + 1).std(1, keepdim=True) + x, 2, 4)
    plain.verify(make_plan(plain.graph, {}, 2, steps=2))
    plain.verify(make_plan(plain.graph, {"moments": "n/2 @0-1"}, 2, steps=2))


def test_a_window_that_is_padded_and_takes_a_whole_piece() -> None:
    """The bug: unread rows and high-side padding each fit into a stride, but together added a row."""
    torch.manual_seed(0)
    x = torch.randn(1, 1, 2, 3).double()
    conv = nn.Sequential(nn.Conv2d(1, 1, (2, 1), stride=2, padding=(1, 0)).double())
    plain = Task(conv, [x], loss=lambda y: y.square().sum())
    plain.verify(make_plan(plain.graph, {"0": "h/2 @0,0", "square": "@1"}, 2))


def test_what_is_recomputed_reads_buffers_as_they_were() -> None:
    """The bug: the second forward of a block read a buffer that the first one had changed."""

    class Fading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.arange(3.0).double() + 1)
            self.register_buffer("fade", torch.ones(()).double())

        def forward(self, x: Tensor) -> Tensor:
            return self.w * x * self.fade.mul_(0.9)

    x = torch.randn(2, 3).double()
    plain = Task(Fading(), [x], loss=lambda y: y.square().sum(), steps=2, microbatches=2)
    every = tuple(op.name for op in plain.graph.ops)
    for tiles in ({}, {"mul_2": "n/2 @0-1"}):
        plan = make_plan(plain.graph, tiles, 2, steps=2, microbatches=2, recompute=(every,))
        plain.verify(plan)


class Partly(nn.Module):
    """Only `fc` is trained; the other parts are unused."""

    def __init__(self, *more: str) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        if "unused" in more:
            self.other = nn.Linear(2, 2)
        if "frozen" in more:
            self.fc.bias.requires_grad_(False)
        self.register_buffer("scale", torch.ones(3), persistent="passing" not in more)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.scale


@pytest.mark.parametrize("more", ["unused", "frozen", "passing"])
def test_a_trainers_state_has_the_modules_names(more: str) -> None:
    model, x = Partly(more).double(), torch.randn(2, 4).double()
    plain = Task(model, [x], loss=lambda y: y.square().sum())
    chosen_plan = make_plan(plain.graph, {"fc": "c/2 @0-1"}, 2)
    for state in on_threads(
        2,
        lambda t: t.state_dict(),
        model,
        plain.optimizer,
        plan=chosen_plan,
        loss=supervised(plain.loss),
        graph=plain.graph,
    ):
        assert state.keys() == model.state_dict().keys()
