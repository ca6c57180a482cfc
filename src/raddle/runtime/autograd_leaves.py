"""How a value enters a segment so that autograd gives its gradient without keeping the value.

A leaf is kept as long as its gradient may be asked for, whether an operator has saved it or not. So a large
value enters by way of a stand-in: a tensor of its shape and of one element's memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LARGE = 256 * 1024  # bytes: for less, a function of Python's takes longer than it is worth


class _LeafForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def make_leaf(value: Tensor) -> tuple[Tensor, Tensor]:
    """What to ask a gradient for, and what to compute with."""
    if value.nbytes < LARGE:
        leaf = value.detach().requires_grad_()
        return leaf, leaf
    stand_in = value.new_empty(1).expand(value.shape).requires_grad_()
    input_value: Tensor = _LeafForward.apply(stand_in, value.detach())  # type: ignore[no-untyped-call]
    return stand_in, input_value
