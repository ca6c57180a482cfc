"""What torch.compile fuses: groups of operators, and what passes through memory between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import small
from torch import nn

from raddle.graph.capture import capture
from raddle.graph.fusion import fused_ops
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised


def graph_of(model: nn.Module, *shape: int) -> Graph:
    return capture(model, (torch.zeros(shape),), supervised(lambda y: y.sum(), targets=0))


def kernels(graph: Graph) -> str:
    """Draws the operators in order, with | where a kernel starts."""
    words = []
    for op in graph.ops:
        words += ["|"] * fused_ops(graph)[op.name].starts_kernel + [op.label]
    return " ".join(words)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        return torch.tanh(x + torch.relu(self.fc(self.norm(x))))


def test_a_residual_is_read_again_after_the_kernel_between() -> None:
    graph = graph_of(Residual(), 8, 4)
    assert kernels(graph) == "| mul moments layer_norm | linear | relu add tanh sum"
    add = next(op for op in graph.ops if op.label == "add")
    passes = dict(zip(add.inputs, fused_ops(graph)[add.name].forward, strict=False))
    residual = graph.ops[0].outputs[0]
    assert passes.pop(residual) == 1  # from memory
    assert set(passes.values()) == {0}  # the relu's result is in the kernel
    assert fused_ops(graph)[graph.ops[0].name].forward == (1, 1)


def test_the_statistics_of_a_batch_norm_end_a_kernel() -> None:
    graph = graph_of(nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU()), 8, 2, 4, 4)
    picture = kernels(graph)
    assert "| moments" in picture
    assert "| batch_norm relu" in picture
    (norm,) = (op for op in graph.ops if op.kind == "batch_norm")
    assert (
        fused_ops(graph)[norm.name].forward[0] == 1
    )  # the convolution's result is read a second time


@pytest.mark.parametrize("name", ["gpt-tiny", "resnet50-tiny", "unet-tiny", "rnnlm-tiny"])
def test_nothing_passes_more_often_than_in_eager_mode(name: str) -> None:
    graph: Any = small(name)[1]
    assert set(fused_ops(graph)) == {op.name for op in graph.ops}
    for op in graph.ops:
        fused = fused_ops(graph)[op.name]
        assert len(fused.forward) == len(op.inputs) + len(op.outputs)
        assert max(fused.forward) <= 1
        if op.space.is_product or op.opaque:
            assert fused.starts_kernel
            assert set(fused.forward) == {1}
