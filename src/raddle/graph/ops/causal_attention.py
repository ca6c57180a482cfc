"""Causal attention of a range of queries, by a fused kernel and without a mask tensor.

Queries first:last read the keys 0:keys, where query t sees the keys 0:t+1. For queries 2:5 of five keys (x:
seen), the mask is lower triangular from the lower right corner:

    query 2   x x x . .
    query 3   x x x x .
    query 4   x x x x x

PyTorch's name for this mask is `causal_lower_right`: fused kernels know it, but they take no boolean mask.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # of queries, keys and values


def causal_attention(first: int, last: int, keys: int, scale: float, dropout: float) -> Attention:
    """The function that computes causal attention of the queries first:last with the keys 0:keys.

    keys: the number of keys that are read: `last` or, if there are fewer keys, all of them. scale: of the
    scores. dropout: the probability with which the kernel drops a weight.
    """
    attend = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=scale)
    if first == 0:
        return partial(attend, is_causal=True)
    if first >= keys - 1:  # every query sees all keys
        return attend
    if last <= keys:
        return _lower_right(last - first, keys, attend)
    # Queries from the last key on see all keys.
    before, count = _lower_right(keys - first, keys, attend), keys - first

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = before(q[..., :count, :], k, v), attend(q[..., count:, :], k, v)
        return torch.cat(parts, -2)

    return run


def _lower_right(queries: int, keys: int, attend: Callable[..., Tensor]) -> Attention:
    # The bias is made here: torch.compile cannot make it inside of a compiled function.
    bias = causal_lower_right(queries, keys)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = _in_autocast_dtype(q, k, v)
        return attend(q, k, v, bias)

    return run


def _in_autocast_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts tensors to the dtype of autocast, if it is on: it does not see the calls that a bias makes."""
    device_type = tensors[0].device.type
    if not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)
