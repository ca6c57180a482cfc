"""Provides the tasks of this benchmark: networks of experiments/nets.py, the same on every rank."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import nets


class Task(NamedTuple):
    """A model to train, with one global batch."""

    model: nn.Module
    inputs: list[Tensor]
    targets: list[Tensor]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)


def task(name: str, batch: int) -> Task:
    """Return the network of this name, the same on every rank; batch: samples of all ranks together."""
    torch.manual_seed(0)
    model, inputs, targets, _ = getattr(nets, name)(batch)
    return Task(model, list(inputs), list(targets))
