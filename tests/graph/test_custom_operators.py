"""Operators that a library defines with torch.library, and what opaque operators cost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from raddle.graph.capture import capture
from raddle.graph.interpret import interpret
from raddle.graph.opaque_flops import opaque_flops_per_point
from raddle.graph.supervised import supervised

MEAN_SQUARE = supervised(lambda y: y.square().mean(), targets=0)


@torch.library.custom_op("raddle_test::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x * x * x


@cube.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    (x,) = ctx.saved_tensors
    return 3 * x * x * gradient


cube.register_autograd(_backward, setup_context=_setup_context)


class Cubes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cube(self.linear(x))


def test_operator_keeps_its_backward() -> None:
    """torch.export keeps such an operator, whose backward is registered with it."""
    torch.manual_seed(0)
    model, x = Cubes().double(), torch.randn(5, 4, dtype=torch.float64)
    graph = capture(model, [x], MEAN_SQUARE)
    assert [op.label for op in graph.opaque_ops] == ["cube"]
    parameters = dict(model.named_parameters())
    loss = interpret(graph, {"x": x, **parameters})[graph.loss or ""]
    expected = model(x).square().mean()
    assert loss.item() == expected.item()
    torch.testing.assert_close(
        torch.autograd.grad(loss, list(parameters.values())),
        torch.autograd.grad(expected, list(parameters.values())),
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        ("_grouped_mm", [(6, 8), (2, 8, 5)], 16),
        ("cdist", [(4, 3), (5, 3)], 9),
        ("fft_rfft", [(4, 16)], 20),
        ("fft_fft2", [(4, 8, 16)], 35),
        ("fft_fftshift", [(4, 16)], 1),
        ("histc", [(40,)], 1),
        ("item", [()], 1),
    ],
)
def test_operations_for_each_element(name: str, shapes: list[tuple[int, ...]], flops: int) -> None:
    assert opaque_flops_per_point(name, [torch.empty(s, device="meta") for s in shapes]) == flops
