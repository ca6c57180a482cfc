"""The tasks of this benchmark: networks of experiments/nets.py, the same on every rank."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import nets


class Task(NamedTuple):
    model: nn.Module
    inputs: list[Tensor]
    targets: list[Tensor]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)


def task(name: str, batch: int) -> Task:
    """The same on every rank: `batch` is the global one."""
    torch.manual_seed(0)
    model, inputs, targets, _ = getattr(nets, name)(batch)
    return Task(model, list(inputs), list(targets))
