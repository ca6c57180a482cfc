"""Defines the losses of the zoo's models.

Each loss takes the model's output, then the targets, and returns a scalar.
"""

# n: sample, t: time step, v: vocabulary, h: height, w: width

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from raddle.graph.dtypes import carries_gradient


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the cross entropy with one label per sample or per pixel.

    The logits have shape (n, classes) or (n, classes, h, w), the labels (n,) or (n, h, w).
    """
    return F.cross_entropy(logits, labels)


def class_loss_with_auxiliary(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """Returns Inception's loss in training; outputs: the logits of the network and of its auxiliary head.

    The loss of the auxiliary head has the weight 0.4.
    """
    logits, auxiliary = outputs
    return F.cross_entropy(logits, labels) + 0.4 * F.cross_entropy(auxiliary, labels)


def token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the cross entropy with one token per time step: logits (n, t, v), tokens (n, t)."""
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def output_loss(output: object) -> Tensor:
    """Returns a loss for a model without one: a scalar output, else the sum of each output's mean square.

    The value has no meaning. It only makes every output take part in the backward pass.
    """
    if isinstance(output, Tensor) and output.ndim == 0:
        return output
    squares = [_magnitude(tensor).square().mean() for tensor in _differentiable_tensors(output)]
    if not squares:
        raise ValueError("the model returned no float tensor: return a loss next to the model.")
    return torch.stack(squares).sum()


def _magnitude(tensor: Tensor) -> Tensor:
    """Returns a tensor that is real: the magnitudes of complex numbers, else the tensor itself."""
    return tensor.abs() if tensor.is_complex() else tensor


def _differentiable_tensors(output: object) -> list[Tensor]:
    """Returns the tensors in an output (a tensor, or nested lists and dicts) that can have gradients."""
    if isinstance(output, Tensor):
        return [output] if carries_gradient(output.dtype) else []
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, Iterable) and not isinstance(output, str):
        return [tensor for item in output for tensor in _differentiable_tensors(item)]
    return []
