"""Attention whose dropout does not depend on the plan: its mask is a hash of positions (random.py).

Fused kernels draw masks of their own. So this attention is computed step by step: scores, softmax, dropout,
and the product with the values. It needs memory for the scores of all queries and keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.graph.operator_kind import Kernel, OperatorTile
from raddle.graph.ops.random import drop


def exact_dropout_attention(tile: OperatorTile) -> Kernel:
    """The function that computes a tile of attention with plan-independent dropout."""
    scale, p, stream_number = (tile.attrs[name] for name in ("scale", "p", "stream"))
    op, out, keys = tile.op, tile.op.space.output_boxes(tile.box)[0], tile.region(1)
    assert keys is not None
    # The weights of the tile are a box of the weights of all queries and keys.
    shape = weights_shape(op)
    box = Box((*out.lo[:-1], keys.lo[-2]), (*out.hi[:-1], keys.hi[-2]))
    # the number of the first query, which a causal mask needs (attention_weights)
    first = out.lo[-2] if tile.attrs["causal"] else None

    def run(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seed: Tensor,
        stream: Tensor | int = stream_number,
    ) -> Tensor:  # fmt: skip
        weights = attention_weights(q, k, mask, first, scale)
        return drop(weights, seed, box, shape, p, stream) @ v

    return run


def weights_shape(op: Op) -> tuple[int, ...]:
    """The shape of the attention weights: that of the result, with the keys in place of the features."""
    sizes = [op.space.dims[d].size for d in op.space.outputs[0]]
    return (*sizes[:-1], op.space.operands[1].indices[-2].extent)


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None, first: int | None, scale: float
) -> Tensor:
    """The softmax of the scores of queries and keys.

    first: with a causal mask, the number of the first query: it sees the keys up to this number; None:
    without a causal mask.
    """
    scores = q * scale @ k.transpose(-2, -1)
    if first is not None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(first)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(mask.logical_not(), -math.inf)
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(-1)
