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

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

# (queries, keys, values, scale of the scores) -> the result
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def causal_attention(first: int, last: int, keys: int) -> Attention:
    """The function that computes causal attention of the queries first:last with the keys 0:keys.

    keys: `last`, or all keys, if there are fewer of them than queries.
    """
    if first == 0:
        return _from_the_first_query
    if first >= keys - 1:
        return _attention
    if last <= keys:
        return _lower_right(last - first, keys)
    # Queries from the last key on see all keys.
    before, count = _lower_right(keys - first, keys), keys - first

    def run(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        parts = before(q[..., :count, :], k, v, scale), _attention(q[..., count:, :], k, v, scale)
        return torch.cat(parts, -2)

    return run


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


def _from_the_first_query(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


def _lower_right(queries: int, keys: int) -> Attention:
    # The bias is made here: torch.compile cannot make it inside of a compiled function.
    bias = causal_lower_right(queries, keys)

    def run(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = _in_autocast_dtype(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, bias, scale=scale)

    return run


def _in_autocast_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts tensors to the dtype of autocast, if it is on: it does not see the calls that a bias makes."""
    device_type = tensors[0].device.type
    if not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)
