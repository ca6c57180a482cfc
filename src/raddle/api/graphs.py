"""Gives the graph of what a user calls the model: a module with its batch and loss, a name, or a graph."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from raddle.api.loading import capture_model
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.zoo.workload import Workload

__all__ = ["Model", "PlannedModel", "graph_of", "planned_module"]

Model = nn.Module | str | Graph  # what functions of the Python API take as the model


class PlannedModel(NamedTuple):
    """The graph of a model and, if the user gave a module, the module with its batch and loss."""

    graph: Graph
    workload: Workload | None = None


def graph_of(model: Model, batch: Any, loss: Loss | None) -> PlannedModel:
    """Return the graph of a model.

    model, batch, loss: an nn.Module, an example batch and loss(model, batch); or the name of a model of the
    zoo or file.py:function, and the number of samples (None: its usual number); or a captured graph alone.
    """
    if isinstance(model, nn.Module):
        return planned_module(model, batch, loss)
    if isinstance(model, str):
        if loss is not None or not (batch is None or type(batch) is int):
            raise InputError(
                f"'{model}' has its own examples and loss: give the number of samples alone, as batch=64."
            )
        return PlannedModel(capture_model(model, batch))
    if isinstance(model, Graph):
        if batch is not None or loss is not None:
            raise InputError("a graph has its batch and its loss already: give neither of them.")
        return PlannedModel(model)
    raise InputError(
        f"the model is a {type(model).__name__}: give an nn.Module with an example batch and a loss, the "
        "name of a model such as 'vgg16', or a graph of raddle.capture."
    )


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
