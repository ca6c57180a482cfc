"""Captures a module for the shapes of a batch, whose tensors may be on another device than the module.

`raddle.parallelize` captures the example batch, and evaluations capture their batches (evaluation.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from raddle.graph.arguments import BatchTemplate, Path, map_leaves
from raddle.graph.capture import capture, capture_step
from raddle.graph.graph import Graph
from raddle.graph.model_call import ModelCall, first_call, model_call
from raddle.graph.recapture import CAPTURE_LOCK
from raddle.graph.step_module import StepModule, batch_template
from raddle.graph.supervised import Loss, Supervised


def capture_batch(model: nn.Module, batch: Any, loss: Loss | None) -> Graph:
    """Returns the training graph of a module for batches like this one."""
    with CAPTURE_LOCK:  # ranks may be threads that share the module
        return capture(model, _on_device_of(model, batch), loss)


def capture_evaluation(step: StepModule, letters: Mapping[str, str]) -> Graph:
    """Returns the graph of a step in evaluation mode; afterwards the module has its former mode.

    letters: of the dimensions of the inputs that training has too, by name.
    """
    names = batch_template(step.model, step.batch, step.loss).names.values()
    dims = {name: letters[name] for name in names if name in letters}
    with CAPTURE_LOCK, _in_evaluation_mode(step.model):
        return capture_step(step.with_batch(_on_device_of(step.model, step.batch)), dims=dims)


def call_of(model: nn.Module, batch: Any, loss: Loss | None, template: BatchTemplate) -> ModelCall:
    """Returns the arguments of the model for a batch that may have no labels; template: of training."""
    if loss is not None and not isinstance(loss, Supervised):
        with CAPTURE_LOCK:  # a hook of the model is set for a moment
            return first_call(model, batch, loss)
    inputs = loss.inputs(batch, template) if isinstance(loss, Supervised) else batch
    if isinstance(inputs, Mapping):
        return model_call(model, (), dict(inputs))
    return model_call(model, inputs if isinstance(inputs, (list, tuple)) else [inputs], {})


@contextmanager
def _in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _on_device_of(model: nn.Module, batch: Any) -> Any:
    """Returns a batch of empty tensors on the device of the model."""
    first_parameter = next((p for p in model.parameters()), None)
    device = torch.device("meta") if first_parameter is None else first_parameter.device

    def empty(path: Path, leaf: Any) -> Any:
        return torch.empty_like(leaf, device=device) if isinstance(leaf, Tensor) else leaf

    return map_leaves(empty, batch)
