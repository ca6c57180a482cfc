"""Makes the networks of this experiment for any image size.

`nets.py:unet_8_128` is a U-Net with 1/8 of the widths for images of 128 x 128.

The zoo loads this file by its path, so it cannot import other modules of this package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from raddle import supervised
from raddle.api.models import Workload
from raddle.api.networks import BatchMaker, CifarResNet, UNet, class_loss, images, masked_images

SPEC = re.compile(r"(unet|resnet110|resnet1001)_(\d+)_(\d+)")  # net, divisor of its widths, side
# residual blocks in each of the three stages of a CIFAR ResNet
DEPTHS: Mapping[str, int] = MappingProxyType({"resnet110": 12, "resnet1001": 111})


def spec(net: str, side: int, *, width_divisor: int = 1) -> str:
    """Returns the name by which the zoo loads a network."""
    return f"{__file__}:{net}_{width_divisor}_{side}"


def __getattr__(name: str) -> Callable[..., Workload]:
    """Returns a function that makes a network and a batch; Python calls it for `nets.unet_8_128`."""
    match = SPEC.fullmatch(name)
    if match is None:
        raise AttributeError(f"{__name__} has no '{name}': write net_divisor_side, as unet_8_128.")
    net, width_divisor, side = match[1], int(match[2]), int(match[3])

    def make_workload(batch: int = 4) -> Workload:
        """Returns the network with example inputs and targets."""
        model = build(net, width_divisor)
        inputs, targets = example_batches(net, side)(batch)
        return Workload(name, model, (*inputs, *targets), supervised(class_loss))

    return make_workload


def build(net: str, width_divisor: int) -> nn.Module:
    """Returns a network with its widths divided; 1 is full width (U-Net 64 to 1024, CIFAR ResNet 16)."""
    if net == "unet":
        return UNet(widths=tuple(width // width_divisor for width in (64, 128, 256, 512, 1024)))
    return CifarResNet(DEPTHS[net], width=16 // width_divisor)


def example_batches(net: str, side: int) -> BatchMaker:
    """Returns a function: number of samples -> inputs and targets (masks for the U-Net, else classes)."""
    return masked_images(3, side, classes=2) if net == "unet" else images(3, side, classes=10)
