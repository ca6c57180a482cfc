"""Defines MPT, a decoder like GPT-2, at its published shapes.

Differs from MosaicML's code: query, key and value are one linear layer followed by PyTorch's attention.
"""

# n: sample, t: token, c: channel, h: head, v: vocabulary

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 50368


class Shape(NamedTuple):
    """The size of a model."""

    width: int
    heads: int
    layers: int


SHAPES = {
    "125m": Shape(768, 12, 12), "350m": Shape(1024, 16, 24), "760m": Shape(1536, 12, 24),
    "1b": Shape(2048, 16, 24), "3b": Shape(2560, 20, 32), "7b": Shape(4096, 32, 32),
    "13b": Shape(5120, 40, 40), "30b": Shape(7168, 56, 48), "70b": Shape(8192, 64, 80),
}  # fmt: skip


class MPT(nn.Module):
    """A decoder with learned positions; the embedding of tokens is also the last layer."""

    def __init__(self, shape: Shape, sequence: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, shape.width)
        self.wpe = nn.Embedding(sequence, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm_f = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]  # (n, t, c)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm_f(x), self.wte.weight)  # (n, t, v)


class Block(nn.Module):
    """Attention, then a feed-forward network; each has a layer norm before it and a residual around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm_1(x)).chunk(3, dim=-1)  # three of (n, t, c)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv)  # (n, h, t, c/h)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        z: Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return z


def next_token_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the mean cross entropy of the next token."""
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def example(sequence: int, samples: int) -> tuple[Tensor, Tensor]:
    """Returns a batch on the meta device: tokens and targets."""
    tokens = torch.zeros(samples, sequence, dtype=torch.long, device="meta")
    return tokens, tokens.clone()
