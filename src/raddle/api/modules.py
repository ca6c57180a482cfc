"""Gives the graph of a user's module with its batch and its loss."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.zoo.workload import Workload

__all__ = ["PlannedModel", "planned_module"]


class PlannedModel(NamedTuple):
    """The graph of a model and, if the user gave a module, the module with its batch and loss."""

    graph: Graph
    workload: Workload | None = None


def planned_module(model: nn.Module, batch: Any, loss: Loss | None) -> PlannedModel:
    """Return the graph of a module, with all that a training of it needs."""
    if batch is None:
        raise InputError(
            f"{type(model).__name__} has no example batch: give what the data loader gives, "
            "as (inputs, targets)."
        )
    graph = capture(model, batch, loss)
    if graph.loss is None:
        raise InputError(
            f"{type(model).__name__} gives no loss: give loss(model, batch), which returns a scalar, such "
            "as raddle.supervised(torch.nn.functional.cross_entropy)."
        )
    return PlannedModel(graph, None if loss is None else Workload(graph.name, model, batch, loss))
