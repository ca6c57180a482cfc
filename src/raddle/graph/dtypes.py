"""Which values carry a gradient: the one place that asks torch's types.

Questions that mean *real* numbers (a loss, an order, probabilities of classes) ask `is_floating_point`.

>>> [carries_gradient(t) for t in (torch.bfloat16, torch.complex64, torch.int64, torch.bool)]
[True, True, False, False]
"""

from __future__ import annotations

import torch
from torch import Tensor


def carries_gradient(dtype: torch.dtype) -> bool:
    """Whether autograd differentiates through values of this type: floats of every width, and complex."""
    return dtype.is_floating_point or dtype.is_complex


def resolve_conj_and_neg(tensor: Tensor) -> Tensor:
    """A tensor whose memory holds its numbers: torch only marks what is conjugated or negated by a view."""
    return tensor.resolve_conj().resolve_neg()


def in_double(tensor: Tensor) -> Tensor:
    """The same numbers in double precision; complex numbers stay complex."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
