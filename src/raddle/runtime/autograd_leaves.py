"""Makes the autograd leaves that a segment runs on, without keeping large values in memory.

A segment computes the gradient of each input that it reads. Autograd keeps every leaf tensor until then,
even if no operator saved it for the backward. Therefore the leaf of a large value is a stand-in: a tensor
of the same shape with the memory of one element.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Bytes: for smaller values, the call of a Python autograd function costs more than it saves
LARGE = 256 * 1024


class _LeafForward(torch.autograd.Function):
    """Returns the value; the backward passes its gradient to the stand-in."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def make_leaf(value: Tensor) -> tuple[Tensor, Tensor]:
    """Returns an autograd leaf and the tensor to compute with.

    The tensor has the given value. Its gradient becomes that of the leaf.
    """
    if value.nbytes < LARGE:
        leaf = value.detach().requires_grad_()
        return leaf, leaf
    stand_in = value.new_empty(1).expand(value.shape).requires_grad_()
    input_value: Tensor = _LeafForward.apply(stand_in, value.detach())  # type: ignore[no-untyped-call]
    return stand_in, input_value
