"""Defines MLP, a plain multi-layer perceptron."""

from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers between `widths`, with a ReLU after each but the last."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.relu(layer(x))
        logits: Tensor = self.layers[-1](x)
        return logits
