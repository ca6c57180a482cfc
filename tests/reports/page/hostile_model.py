"""A model whose layer names contain markup, scripts and control characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import raddle

NAMES = [
    "<img src=x onerror=alert(1)>",
    "</script><script>broken=1</script>",
    "\"'`&lt;quotes&quot;'\"",
    "\u202egnihtyreve snrut\u202c",
    "שלום‏\u200f",
    "{{7*7}}${7*7}",
    "long" * 2500,
]


class Hostile(nn.Module):
    """A chain of linear layers, one for each of NAMES."""

    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = torch.relu(layer(x))
        return x


def build(batch: int = 8):  # type: ignore[no-untyped-def]
    loss = raddle.supervised(lambda y: y.square().mean(), targets=0)
    return Hostile(), (torch.randn(batch, 8),), loss
