"""The graph of a module for inputs that a plan describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.resizing import ONE_AT_A_TIME


def capture_like(
    model: nn.Module, inputs: Sequence[Mapping[str, Any]], loss: Callable[..., Tensor] | None
) -> Graph:
    """The graph of a module for inputs that a plan describes."""
    own = next((p for p in model.parameters()), None)
    device = "meta" if own is None else own.device
    made = {
        i["name"]: torch.empty(i["shape"], dtype=getattr(torch, i["dtype"]), device=device)
        for i in inputs
    }
    given = {i["name"]: made[i["name"]] for i in inputs if not i["target"]}
    keywords = any(i["keyword"] for i in inputs)
    return capture(
        model,
        given if keywords else list(given.values()),
        targets=[made[i["name"]] for i in inputs if i["target"]],
        loss=loss,
        dims={i["name"]: i["letters"] for i in inputs},
    )


def capture_evaluating(
    model: nn.Module, inputs: Sequence[Mapping[str, Any]], loss: Callable[..., Tensor] | None
) -> Graph:
    """The same in evaluation mode; the module is left in the mode that it has."""
    with ONE_AT_A_TIME:
        modes = {m: m.training for m in model.modules()}
        try:
            return capture_like(model.eval(), inputs, loss)
        finally:
            for module, mode in modes.items():
                module.training = mode
