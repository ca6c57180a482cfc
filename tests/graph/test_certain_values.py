"""Code that asks for values of tensors is captured where the answer is certain, else refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.supervised import supervised

MEAN_SQUARE = supervised(lambda y: y.square().mean(), targets=0)


class LayerDrop(nn.Module):
    """Layers that are left out with a probability, as in transformers."""

    def __init__(self, probability: float, compare: str = "lt") -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.probability, self.compare = probability, compare

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            drop = getattr(torch.rand([]), self.compare)(self.probability)
            if self.training and drop:
                continue
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("probability", "compare", "layers"),
    [(0.0, "lt", 3), (-0.5, "le", 3), (1.0, "lt", 0), (1.0, "gt", 3), (0.0, "ge", 0)],
)
def test_certain_comparisons(probability: float, compare: str, layers: int) -> None:
    model = nn.Sequential(LayerDrop(probability, compare), nn.Linear(4, 2))
    graph = capture(model, [torch.randn(3, 4)], MEAN_SQUARE)
    assert sum(op.kind == "linear" for op in graph.ops) == layers + 1
    assert not any(op.kind == "draw" for op in graph.ops)


@pytest.mark.parametrize(("probability", "compare"), [(0.1, "lt"), (0.0, "le"), (0.0, "gt")])
def test_chance_is_refused_with_the_line(probability: float, compare: str) -> None:
    model = LayerDrop(probability, compare)
    with pytest.raises(InputError, match=r"test_certain_values.py:\d+ in forward.*layerdrop = 0"):
        capture(model, [torch.randn(3, 4)], MEAN_SQUARE)


def test_not_in_training() -> None:
    graph = capture(LayerDrop(0.5).eval(), [torch.randn(3, 4)], MEAN_SQUARE)
    assert sum(op.kind == "linear" for op in graph.ops) == 3


class Ranges(nn.Module):
    def __init__(self, written: bool) -> None:
        super().__init__()
        self.written, self.linear = written, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        dims = torch.arange(1, x.ndim)
        if self.written:
            dims[0].fill_(0)
        return self.linear(x).sum(dims.tolist())


def test_list_of_a_range() -> None:
    """As in MONAI's Dice loss. A range that was written to is asked of torch, which refuses."""
    x = torch.randn(3, 5, 4)
    graph = capture(Ranges(False), [x], MEAN_SQUARE)
    assert (3,) in [graph.values[op.outputs[0]].shape for op in graph.ops]
    assert not graph.opaque_ops
    with pytest.raises(InputError, match=r"test_certain_values.py:\d+"):
        capture(Ranges(True), [x], MEAN_SQUARE)


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * x.sum().item() if x.sum() > 0 else x


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """torch.export prints the graph that it has when it fails."""
    expected = (
        r"Failing cannot be captured at .*test_certain_values.py:\d+ .* Compute with tensors there"
    )
    with pytest.raises(InputError, match=expected):
        capture(Failing(), [torch.randn(3, 4)], MEAN_SQUARE)
    assert capfd.readouterr() == ("", "")


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        count = (x > 0).sum().item()
        torch._check(count <= x.numel())
        return self.linear(x)


def test_an_assertion_on_a_value_is_left_out() -> None:
    graph = capture(Checked(), [torch.randn(3, 4)], MEAN_SQUARE)
    assert [op.kind for op in graph.ops] == ["linear", "pointwise", "sum"]
