"""What is trained here: networks shaped as those of P3's paper, small enough for one core."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.zoo.resnet import ResNet
from raddle.zoo.vgg import VGG, VGG19


class Task(NamedTuple):
    model: nn.Module
    inputs: list[Tensor]
    targets: list[Tensor]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)


def task(name: str, batch: int) -> Task:
    """The same on every rank: `batch` is the global one."""
    torch.manual_seed(0)
    if name == "vgg19":  # a quarter as wide; one tensor has 73 % of the parameters, as in the original 71
        widths = (16, 32, 64, 128, 128)
        model: nn.Module = VGG(VGG19, widths=widths, hidden=1024, classes=100, dropout=0.0)
    else:  # three eighths as wide
        model = ResNet((3, 4, 6, 3), width=24, classes=100)
    side = 96
    return Task(model, [torch.randn(batch, 3, side, side)], [torch.randint(0, 100, (batch,))])
