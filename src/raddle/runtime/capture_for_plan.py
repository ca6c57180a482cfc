"""Captures the graph of a module for the inputs that a plan describes, without a batch from the user.

`raddle.parallelize` needs the graph to lower the plan; evaluation needs another one (evaluation.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.recapture import CAPTURE_LOCK


def capture_for_plan(
    model: nn.Module, inputs: Sequence[Mapping[str, Any]], loss: Callable[..., Tensor] | None
) -> Graph:
    """Returns the graph of a module for empty tensors of the described shapes.

    inputs: `plan.inputs`, with name, shape, dtype, letters (names of dimensions), whether it is a target of
    the loss, and whether it is a keyword argument.
    """
    first_parameter = next((p for p in model.parameters()), None)
    device = "meta" if first_parameter is None else first_parameter.device
    tensors = {
        i["name"]: torch.empty(i["shape"], dtype=getattr(torch, i["dtype"]), device=device)
        for i in inputs
    }
    model_inputs = {i["name"]: tensors[i["name"]] for i in inputs if not i["target"]}
    keywords = any(i["keyword"] for i in inputs)
    return capture(
        model,
        model_inputs if keywords else list(model_inputs.values()),
        targets=[tensors[i["name"]] for i in inputs if i["target"]],
        loss=loss,
        dims={i["name"]: i["letters"] for i in inputs},
    )


def capture_for_evaluation(
    model: nn.Module, inputs: Sequence[Mapping[str, Any]], loss: Callable[..., Tensor] | None
) -> Graph:
    """Returns the graph of a module in evaluation mode; afterwards the module has its former mode.

    The arguments are those of capture_for_plan.
    """
    with CAPTURE_LOCK:  # ranks may be threads that share the module
        modes = {m: m.training for m in model.modules()}
        try:
            return capture_for_plan(model.eval(), inputs, loss)
        finally:
            for module, mode in modes.items():
                module.training = mode
