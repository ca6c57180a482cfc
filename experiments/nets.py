"""Defines networks shaped like those of the P3 and Horovod papers, small enough for one core of the lab.

The zoo loads each function by its file and name: zoo.load(spec("vgg19"), batch=20).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raddle import supervised
from raddle.api.networks import (
    RESNET50,
    VGG,
    VGG19,
    Inception3,
    LanguageModel,
    ResNet,
    class_loss,
    class_loss_with_auxiliary,
    images,
    text,
    token_loss,
)

# `images(channels, side, classes)(batch)` makes inputs and targets.
# VGG: `widths` are the channels of its five stages, `hidden` the features of its linear layers, `pool` the
# height and width in pixels that the classifier gets. RESNET50, VGG19: numbers of blocks, layers by stage.
CLASSES = 100
SIDE = 96  # of an image, in pixels


class Task(NamedTuple):
    """A model to train with one batch, as the zoo expects it of a function in a file."""

    model: nn.Module
    batch: tuple[Tensor, ...]  # the inputs and the target
    loss: Callable[[nn.Module, Any], Any]  # (model, batch)


def spec(name: str) -> str:
    """Returns the name by which the zoo loads a function of this file."""
    return f"{__file__}:{name}"


def vgg19(batch: int = 20) -> Task:
    """Returns VGG-19 with a quarter of the width.

    One tensor has 73 % of the parameters; in the original it has 71.5 %.
    """
    model = VGG(VGG19, widths=(16, 32, 64, 128, 128), hidden=1024, classes=CLASSES, dropout=0.0)
    return _task(model, images(3, SIDE, CLASSES)(batch), class_loss)


def resnet50(batch: int = 16) -> Task:
    """Returns ResNet-50, three eighths as wide: 161 parameter tensors, all of them small."""
    model = ResNet(RESNET50, width=24, classes=CLASSES)
    return _task(model, images(3, SIDE, CLASSES)(batch), class_loss)


def inception(batch: int = 8) -> Task:
    """Returns Inception-v3, a quarter as wide: 292 parameter tensors, with those of the auxiliary head."""
    # auxiliary head: window and stride of its pooling, kernel size of its convolution
    model = Inception3(shrink=4, auxiliary=(3, 2, 3), classes=CLASSES, dropout=0.0)
    return _task(model, images(3, 139, CLASSES)(batch), class_loss_with_auxiliary)


def lstm(batch: int = 16) -> Task:
    """Returns two LSTM layers between an embedding and an equally large projection.

    The embedding is used first in a forward. There are 4000 words, and sentences of 12 words.
    """
    model = LanguageModel(vocabulary=4000, hidden=384, layers=2, dropout=0.0)
    return _task(model, text(4000, 12)(batch), token_loss)


def small(batch: int = 8) -> Task:
    """Returns VGG-19 for images of 32 x 32: small enough for eight ranks on two cores."""
    model = VGG(
        VGG19, widths=(16, 32, 64, 128, 128), hidden=512, classes=CLASSES, dropout=0.0, pool=3
    )
    return _task(model, images(3, 32, CLASSES)(batch), class_loss)


def alexnet(batch: int = 32) -> Task:
    """Returns AlexNet, half as wide: its three linear layers have 95 % of the parameters."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(32, 96, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 192, 3, padding=1), nn.ReLU(),
        nn.Conv2d(192, 128, 3, padding=1), nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        nn.Linear(128 * 36, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, CLASSES),
    )  # fmt: skip
    return _task(model, images(3, 160, CLASSES)(batch), class_loss)


def _task(
    model: nn.Module,
    batch: tuple[tuple[Tensor, ...], tuple[Tensor, ...]],
    criterion: Callable[..., Tensor],
) -> Task:
    """Returns a task; batch: inputs and targets."""
    inputs, targets = batch
    return Task(model, (*inputs, *targets), supervised(criterion))


def parameter_sizes(model: nn.Module) -> list[int]:
    """Returns the number of elements of each parameter."""
    return [p.numel() for p in model.parameters()]


def build_on_meta(name: str) -> nn.Module:
    """Builds a network of this file on the meta device: shapes only, no memory."""
    with torch.device("meta"):
        task: Task = globals()[name](batch=2)
    return task.model
