"""Defines the cases of this benchmark: a module, a batch, a plan, and its peer (DDP or DTensor).

The keys of a split are the beginnings of operators' names, its values are tilings: "c/2 @0,1" halves the
output features, "k/2 @0,1" the input features, "x2 @0,1" copies the operator to both devices.
"""

# b: samples, t: tokens, c: channels

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raddle import supervised
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.notation import read_tiling
from raddle.plans.plan import Plan
from raddle.zoo.gpt import GPT
from raddle.zoo.resnet import ResNet
from raddle.zoo.vgg import VGG


@dataclass(frozen=True)
class Case:
    """A module, one global batch, a loss, a plan for two ranks, and the peer that it is compared with."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[list[Tensor], list[Tensor]]]  # makes (inputs, targets)
    loss: Callable[..., Tensor]
    plan: Callable[[Graph], Plan]
    peer: str  # ddp | dtensor


class Mlp(nn.Module):
    """Four linear layers: x[b 1024] -> 4096 -> 1024, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up1, self.down1 = nn.Linear(1024, 4096), nn.Linear(4096, 1024)
        self.up2, self.down2 = nn.Linear(1024, 4096), nn.Linear(4096, 1024)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down1(torch.relu(self.up1(x)))
        return self.down2(torch.relu(self.up2(x)))


class Block(nn.Module):
    """A transformer block whose queries, keys and values are layers of their own."""

    def __init__(self, width: int = 512, head: int = 64) -> None:
        super().__init__()
        self.head = head
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # x[b t c]
        b, t, _ = x.shape
        y = self.ln1(x)
        q, k, v = (f(y).view(b, t, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


def data_parallel(bn: str) -> Callable[[Graph], Plan]:
    """Return a function that plans data parallelism; bn: over what batch norm takes its statistics."""

    def make(graph: Graph) -> Plan:
        from raddle.clusters import cluster  # here: a rank that is given plans needs neither
        from raddle.searches.planning import plan_for

        return plan_for(graph, cluster("local:2"), "data", bn=bn)

    return make


def tensor_parallel(split: dict[str, str]) -> Callable[[Graph], Plan]:
    """Return a function that plans tensor parallelism.

    It splits operators whose name starts with a key of `split`, and copies all others to both ranks.
    """

    def make(graph: Graph) -> Plan:
        tiles = {}
        for op in graph.ops:
            tilings = [text for start, text in split.items() if op.name.startswith(start)]
            tiles[op.name] = read_tiling(op, tilings[0] if tilings else "x2 @0,1")
        return replace(data_parallel("local")(graph), tiles=tiles)

    return make


def _images(count: int, pixels: int) -> Callable[[], tuple[list[Tensor], list[Tensor]]]:
    """Return a function that makes a batch of square images with a label each."""
    return lambda: ([torch.randn(count, 3, pixels, pixels)], [torch.randint(10, (count,))])


def _tokens(count: int, length: int, words: int) -> Callable[[], tuple[list[Tensor], list[Tensor]]]:
    """Return a function that makes a batch of sentences; words: the size of the vocabulary."""
    return lambda: (
        [torch.randint(words, (count, length))],
        [torch.randint(words, (count, length))],
    )


def _vectors(*shape: int) -> Callable[[], tuple[list[Tensor], list[Tensor]]]:
    """Return a function that makes a batch of random numbers of this shape, without targets."""
    return lambda: ([torch.randn(*shape)], [])


def _token_loss(y: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy with one target per token."""
    return F.cross_entropy(y.flatten(0, 1), target.flatten())


def _square(y: Tensor) -> Tensor:
    """Return the mean square of an output, as a loss without targets."""
    return y.square().mean()


def _vgg() -> nn.Module:
    """Return a small VGG without dropout, whose losses are equal on both sides."""
    return VGG((1, 1, 2, 2, 2), widths=(32, 64, 128, 256, 256), hidden=512, classes=10, dropout=0.0)


MLP_SPLIT = {
    "up1": "c/2 @0,1", "relu": "c/2 @0,1", "down1": "k/2 @0,1", "up2": "c/2 @0,1", "down2": "k/2 @0,1",
}  # fmt: skip
# Attention is split by heads (letter c of the permuted tensors), the feed-forward network by its channels.
BLOCK_SPLIT = {
    **dict.fromkeys(("q", "k", "v", "reshape", "permute", "attention", "up", "gelu"), "c/2 @0,1"),
    **dict.fromkeys(("proj", "down"), "k/2 @0,1"),
}

CASES = [
    Case("VGG-like", _vgg, _images(16, 64), F.cross_entropy, data_parallel("local"), "ddp"),
    Case(
        "ResNet-like", lambda: ResNet((1, 1, 1, 1), width=32, classes=10), _images(16, 96),
        F.cross_entropy, data_parallel("local"), "ddp",
    ),
    Case(
        "ResNet-like, global statistics", lambda: ResNet((1, 1, 1, 1), width=32, classes=10),
        _images(16, 96), F.cross_entropy, data_parallel("global"), "ddp",
    ),
    Case(
        "transformer",
        lambda: GPT(vocabulary=1000, context=128, layers=4, heads=4, width=256, dropout=0.0),
        _tokens(8, 128, 1000), _token_loss, data_parallel("local"), "ddp",
    ),
    Case("MLP, tensor parallel", Mlp, _vectors(256, 1024), _square, tensor_parallel(MLP_SPLIT), "dtensor"),
    Case(
        "transformer block, tensor parallel", Block, _vectors(8, 128, 512), _square,
        tensor_parallel(BLOCK_SPLIT), "dtensor",
    ),
]  # fmt: skip


def captured(case: Case, model: nn.Module, inputs: list[Tensor], targets: list[Tensor]) -> Graph:
    """Return the graph of a case's model with its loss."""
    return capture(
        model, (*inputs, *targets), supervised(case.loss, targets=len(targets)), name=case.name
    )


def dtensor(case: Case, model: nn.Module) -> nn.Module:
    """Return the model with the same split, made by torch.distributed.tensor.parallel."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2,))
    column = ("up", "q", "k", "v")
    plan: dict[str, Any] = {
        name: ColwiseParallel() if name.startswith(column) else RowwiseParallel()
        for name, module in model.named_children()
        if isinstance(module, nn.Linear)
    }
    return parallelize_module(model, mesh, plan)
