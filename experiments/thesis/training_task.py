"""Makes the training task of training.py: a small VGG-like network learns scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.errors import InputError

SCALE = 2  # 8x8 digits, each pixel twice as wide and high
TARGET = 0.9  # training accuracy
BATCH = 32  # global
RATE = 0.0005  # small, so that several evaluations come before the target


def digits() -> tuple[Tensor, Tensor]:
    """Returns images[n 1 16 16] and labels[n], cut to whole batches."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise InputError(
            "the digits come with scikit-learn, which is not there: pip install scikit-learn."
        ) from None
    dataset = load_digits()
    images = torch.tensor(dataset.images / 16, dtype=torch.float32).unsqueeze(1)
    images = F.interpolate(images, scale_factor=SCALE, mode="bilinear")
    whole = len(images) // BATCH * BATCH
    return images[:whole], torch.tensor(dataset.target)[:whole]


def build_network(width: int, seed: int) -> nn.Module:
    """Returns three pairs of 3x3 convolutions, each followed by a pooling, then two linear layers.

    width: filters of the first pair.
    """
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    channels = 1
    for maps in (width, 2 * width, 4 * width):
        for _ in range(2):
            layers += [nn.Conv2d(channels, maps, 3, padding=1), nn.ReLU()]
            channels = maps
        layers.append(nn.MaxPool2d(2))
    side, hidden = SCALE, 8 * width  # three poolings leave an eighth of 8 x SCALE pixels
    layers += [nn.Flatten(), nn.Linear(channels * side * side, hidden), nn.ReLU()]
    layers.append(nn.Linear(hidden, 10))
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):  # torch's default would hardly learn at first
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns the optimizer that every kind of training uses."""
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def batches(count: int, seed: int) -> Iterator[Tensor]:
    """Yields endless batches of image indices, shuffled anew in every epoch, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).split(BATCH)  # type: ignore[no-untyped-call]
