"""Builds networks for very large images, for `raddle compare models.py:unet1024 …`; see README.md.

Each public function returns (module, batch, loss); the number in its name is the side of the images in
pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raddle import supervised
from raddle.zoo.losses import class_loss
from raddle.zoo.resnet_cifar import CifarResNet
from raddle.zoo.unet import UNet


def _unet(side: int, batch: int) -> tuple[nn.Module, tuple[Tensor, ...], object]:
    """Return a U-Net with images and masks on the device "meta", without memory."""
    masks = torch.zeros(batch, side, side, dtype=torch.long, device="meta")
    images = torch.empty(batch, 3, side, side, device="meta")
    return UNet(), (images, masks), supervised(class_loss)


def _resnet110(side: int, batch: int) -> tuple[nn.Module, tuple[Tensor, ...], object]:
    """Return ResNet-110 with images and labels on the device "meta", without memory."""
    classes = torch.zeros(batch, dtype=torch.long, device="meta")
    images = torch.empty(batch, 3, side, side, device="meta")
    return CifarResNet(12), (images, classes), supervised(class_loss)  # depth 9 * 12 + 2


def unet1024(batch: int = 8) -> object:
    """Return U-Net for images of 1024 x 1024 pixels."""
    return _unet(1024, batch)


def unet4096(batch: int = 8) -> object:
    """Return U-Net for images of 4096 x 4096 pixels."""
    return _unet(4096, batch)


def unet8192(batch: int = 8) -> object:
    """Return U-Net for images of 8192 x 8192 pixels."""
    return _unet(8192, batch)


def resnet1024(batch: int = 8) -> object:
    """Return ResNet-110 for images of 1024 x 1024 pixels."""
    return _resnet110(1024, batch)


def resnet4096(batch: int = 8) -> object:
    """Return ResNet-110 for images of 4096 x 4096 pixels."""
    return _resnet110(4096, batch)
