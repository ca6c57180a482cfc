"""Which values have a gradient: the same as for autograd."""

import torch
from torch import Tensor, nn

from raddle.graph.capture import capture
from raddle.graph.gradients import (
    active_values,
    contributes_gradient,
    gradient_contributors,
    has_backward,
    inputs_with_gradient,
    operands_with_gradient,
    trained_parameters,
)
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised


class Branches(nn.Module):
    """One branch is trained, one is cut off by `detach`, one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.cut, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.trained(x).relu() * self.cut(x).detach() + self.frozen(x)


def branches() -> Graph:
    return capture(
        Branches(), (torch.zeros(2, 4),), supervised(lambda y: y.sum(), targets=0), name="branches"
    )


def test_parameters_are_active_where_autograd_gives_them_a_gradient() -> None:
    model, graph = Branches(), branches()
    model(torch.rand(2, 4)).sum().backward()
    given = {name for name, p in model.named_parameters() if p.grad is not None}
    assert {p.name for p in graph.parameters} & active_values(graph) == given


def test_operators_give_gradients_to_what_is_active_alone() -> None:
    graph = branches()
    active = active_values(graph)
    (product,) = (op for op in graph.ops if op.label == "mul")
    assert has_backward(product, active)
    assert [product.inputs[i] for i in operands_with_gradient(product, active)] == [
        product.inputs[0]
    ]
    assert inputs_with_gradient(product, active) == product.inputs[:1]
    assert contributes_gradient(product, product.inputs[0], active)
    assert not contributes_gradient(product, product.inputs[1], active)
    assert product in gradient_contributors(graph, active)[product.inputs[0]]
    weighted = [op.kind for op in graph.ops if trained_parameters(graph, op, active)]
    assert weighted == ["linear"]


def test_without_a_loss_nothing_has_a_gradient() -> None:
    graph = capture(Branches(), [torch.zeros(2, 4)], name="branches")
    assert active_values(graph) == frozenset()
    assert gradient_contributors(graph, frozenset()) == {}
