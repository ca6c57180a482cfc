"""Defines Workload: a model to train, with one example batch and the loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Workload:
    """A model to train. One training step is ``loss(model(*inputs), *targets).backward()``.

    Dimension 0 of every input and target is the sample dimension. The loss returns a scalar.
    """

    name: str
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]
