"""What is trained here: networks shaped as those of P3's paper, small enough for one core."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.clusters import Cluster
from raddle.zoo.resnet import ResNet
from raddle.zoo.vgg import VGG, VGG19


class Task(NamedTuple):
    model: nn.Module
    inputs: list[Tensor]
    targets: list[Tensor]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)


# A core of the machine; operators are measured, so this counts for updates and searches alone.
DEVICE = {
    "flops": {"float32": "60 GFLOP/s"}, "bandwidth": "8 GB/s", "memory": "8 GB", "overhead": "10 us",
}  # fmt: skip


def hosts(count: int, bandwidth: float, latency: float = 2e-4) -> Cluster:
    """The lab as a cluster; bandwidth in bytes/s."""
    return Cluster.from_dict(
        {
            "name": "lab",
            "devices": {"core": DEVICE},
            "nodes": [{"count": count, "devices": ["core"]}],
            "network": {
                "bandwidth": bandwidth, "latency": latency, "duplex": True, "per_device": False,
            },
        }
    )  # fmt: skip


def alexnet() -> nn.Module:
    """Five convolutions and three linear layers, which have 95 % of the parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(32, 96, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 192, 3, padding=1), nn.ReLU(),
        nn.Conv2d(192, 128, 3, padding=1), nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        nn.Linear(128 * 36, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 100),
    )  # fmt: skip


def task(name: str, batch: int) -> Task:
    """The same on every rank: `batch` is the global one."""
    torch.manual_seed(0)
    if (
        name == "vgg19"
    ):  # a quarter as wide; one tensor has 73 % of the parameters, as in the original 71
        widths = (16, 32, 64, 128, 128)
        model: nn.Module = VGG(VGG19, widths=widths, hidden=1024, classes=100, dropout=0.0)
    elif name == "alexnet":  # a half as wide, linear layers a quarter
        model = alexnet()
    else:  # ResNet-50, three eighths as wide
        model = ResNet((3, 4, 6, 3), width=24, classes=100)
    side = 160 if name == "alexnet" else 96
    return Task(model, [torch.randn(batch, 3, side, side)], [torch.randint(0, 100, (batch,))])
