"""Defines the networks whose plans are measured: small versions of the zoo's, with steps of 0.1 s.

Each is loaded as `models.py:function`. Like the large originals, they differ in image size, in layer widths
and in how much of a step's data is weights.

maps, widths: channels of the layers or stages; hidden: features of the linear layers; pool: height and
width in pixels of what the classifier gets. The first argument of VGG and ResNet: layers or blocks of each
stage. `images(channels, side, classes)(batch)` makes inputs and targets.
"""

from torch import Tensor, nn

from raddle import supervised
from raddle.api.models import Workload
from raddle.api.networks import VGG, AlexNet, ResNet, UNet, class_loss, images, masked_images


def alexnet(batch: int = 16) -> Workload:
    """Returns a network with two thirds of its weights in two fully connected layers."""
    model = AlexNet(
        maps=(32, 64, 96, 64, 64), hidden=512, classes=100, pool=3, dropout=0.0
    )  # fmt: skip
    return _workload("alexnet-like", model, images(3, 127, classes=100)(batch))


def vgg(batch: int = 8) -> Workload:
    """Returns a network with large feature maps at the beginning and many weights at the end."""
    model = VGG(
        (1, 1, 2, 2, 2), widths=(16, 32, 64, 96, 96), hidden=384, classes=100, pool=2, dropout=0.0
    )  # fmt: skip
    return _workload("vgg-like", model, images(3, 64, classes=100)(batch))


def resnet(batch: int = 16) -> Workload:
    """Returns a network with few weights, many small operators, and batch statistics."""
    model = ResNet((1, 1, 1, 1), width=16, classes=100)
    return _workload("resnet-like", model, images(3, 96, classes=100)(batch))


def unet(batch: int = 4) -> Workload:
    """Returns a network whose skip connections keep large feature maps alive until the decoder."""
    model = UNet(widths=(8, 16, 32, 64))
    return _workload("unet-like", model, masked_images(3, 96, classes=2)(batch))


def _workload(
    name: str, model: nn.Module, examples: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
) -> Workload:
    inputs, targets = examples
    return Workload(name, model, (*inputs, *targets), supervised(class_loss))
