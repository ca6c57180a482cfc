"""Tells which data types have gradients, and what autocast casts; other files do not ask torch's types.

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


def cast_dtype(dtype: torch.dtype, cast: torch.dtype | None) -> torch.dtype:
    """Returns the dtype that an operand has after a cast of autocast: only floating point up to 32 bits."""
    is_cast = cast is not None and dtype.is_floating_point and dtype != torch.float64
    return cast if is_cast and cast is not None else dtype


def resolve_conj_and_neg(tensor: Tensor) -> Tensor:
    """Returns the tensor with its elements in memory as they are read.

    torch conjugates and negates lazily: it only sets a bit of the tensor.
    """
    return tensor.resolve_conj().resolve_neg()


def in_double(tensor: Tensor) -> Tensor:
    """Returns the tensor in double precision; complex numbers stay complex."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
