"""Tells which data types have gradients; no other file asks torch's types for this.

Code that needs *real* numbers (a loss, a comparison, probabilities of classes) uses `is_floating_point`.

>>> [carries_gradient(t) for t in (torch.bfloat16, torch.complex64, torch.int64, torch.bool)]
[True, True, False, False]
"""

from __future__ import annotations

import torch
from torch import Tensor


def carries_gradient(dtype: torch.dtype) -> bool:
    """Returns whether autograd differentiates through this type: floating-point and complex numbers."""
    return dtype.is_floating_point or dtype.is_complex


def resolve_conj_and_neg(tensor: Tensor) -> Tensor:
    """Returns the tensor with its elements in memory as they are read.

    torch conjugates and negates lazily: it only sets a bit of the tensor.
    """
    return tensor.resolve_conj().resolve_neg()


def in_double(tensor: Tensor) -> Tensor:
    """Returns the tensor in double precision; complex numbers stay complex."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
