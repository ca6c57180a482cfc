"""Clips gradients that are spread over ranks by their global norm, as torch's clip_grad_norm_.

The global norm is that of all gradients of the model as one vector. A rank has only a part of them, so the
ranks add their sums of squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raddle.graph.dtypes import in_double
from raddle.transport.base import Transport

CLIPPING_TAG = 2**31 - 3  # programs do not use this tag


def clip(
    transport: Transport,
    place: torch.device,
    parameters: Sequence[tuple[Tensor, bool]],
    limit: float,
) -> Tensor:
    """Scales this rank's gradients so that the global norm is at most `limit`; returns the norm.

    place: the torch device of this rank. parameters: those of this rank, each with whether this rank counts
    it in the norm. If several ranks hold the same part of a parameter, only one of them counts it. All
    ranks call this function.
    """
    square = torch.zeros((), dtype=torch.float64, device=place)
    with_gradient = [(p, counts) for p, counts in parameters if p.grad is not None]
    for parameter, counts in with_gradient:
        if counts and parameter.grad is not None:
            square += torch.linalg.vector_norm(in_double(parameter.grad)).square()
    all_ranks = tuple(range(transport.size))
    transport.all_reduce(all_ranks, CLIPPING_TAG, square.view(1), "the norm of gradients").wait()
    norm = square.sqrt()
    scale = torch.clamp(limit / (norm + 1e-6), max=1.0)  # as torch.nn.utils.clip_grad_norm_
    for parameter, _ in with_gradient:
        assert parameter.grad is not None
        parameter.grad = parameter.grad * scale.to(parameter.grad.dtype)
    return norm
