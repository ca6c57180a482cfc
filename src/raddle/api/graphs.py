"""Gives the graph of what a user calls the model: a module with its batch and loss, a name, or a graph."""

from __future__ import annotations

from typing import Any

from torch import nn

from raddle.api.loading import capture_model
from raddle.api.modules import PlannedModel, planned_module
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss

__all__ = ["Model", "graph_of"]

Model = nn.Module | str | Graph  # what functions of the Python API take as the model


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
