"""Defines Workload: a model to train, with one example batch and the loss."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from raddle.graph.supervised import Loss


@dataclass(frozen=True)
class Workload:
    """A model to train. One training step is `loss(model, batch).backward()`.

    Dimension 0 of every tensor in the batch is the sample dimension. The loss returns a scalar, or a scalar
    and metrics.
    """

    name: str
    model: nn.Module
    batch: Any  # tensors, or lists, tuples, mappings and dataclasses of them
    loss: Loss
