"""Scaled dot product attention.

    y[a.. t c] = q[a.. t K], k[a.. S K], v[a.. S c], mask[a.. t S]      a..: any number of dimensions

t are queries, S keys, K the features of queries and keys, c those of the values.

Samples, heads, queries and the features of the values can be split. With a causal mask a box needs no keys
after its last query, which the notation says by a table: k[a.. keys(t) K]; causal_attention.py computes it.
With dropout, the seed of the step is a further operand, and attrs has the probability `p` and the number of
a random stream (random.py). *Native* dropout is that of the fused kernel, which draws from torch's
generator, so its masks depend on the tiles. *Exact* dropout (attrs["exact"], exact_dropout_attention.py)
does not depend on them.

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from raddle.graph.box import Box
from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.constants import constant_value
from raddle.graph.graph import Op, Value
from raddle.graph.letters import unique
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.causal_attention import causal_attention
from raddle.graph.ops.exact_dropout_attention import exact_dropout_attention
from raddle.graph.ops.pointwise import (
    broadcast_access,
    broadcast_letters,
    broadcast_shape,
)
from raddle.graph.ops.random import next_stream
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


def _attention_notation(sig: Signature) -> str:
    out, batch, rank = sig.outputs[0], sig.outputs[0][:-2], len(sig.outputs[0])
    lead = broadcast_letters(
        [s[:-2] for s in sig.shapes[:3]], [a[:-2] for a in sig.letters[:3]], batch
    )
    *lead, t, c = unique([*lead, sig.letters[0][-2], sig.letters[2][-1]])
    keys = f"keys({t})" if sig.attrs["causal"] else "%"  # "%" becomes the letter of the keys below
    # the indices of the leading dimensions of q, k and v, as text
    a = [broadcast_access(s[:-2], lead, batch) for s in sig.shapes[:3]]
    # Capital letters for the dimensions that are never split: keys, and features of queries and keys.
    s, k = (letter.upper() for letter in unique("sk", [*lead, t, c]))
    notation = (
        f"y[{' '.join([*lead, t, c])}] = "
        f"q[{a[0]} {t} {k}], k[{a[1]} {keys} {k}], v[{a[2]} {keys} {c}]"
    )
    if len(sig.shapes) > (4 if "p" in sig.attrs else 3):
        scores = [*batch, out[rank - 2], sig.shapes[1][-2]]
        notation += f", m[{broadcast_access(sig.shapes[3], [*lead, t, s], scores)}]"
    if "p" in sig.attrs:
        notation += ", seed[]"
    return notation.replace("%", s)


def with_exact_dropout(op: Op) -> Op:
    """The operator whose dropout masks do not depend on the plan; without dropout, `op` itself."""
    return replace(op, attrs={**op.attrs, "exact": True}) if has_attention_dropout(op) else op


def has_attention_dropout(op: Op) -> bool:
    """Whether an operator is attention with dropout, which a fused kernel computes in one call."""
    return op.kind == "attention" and "p" in op.attrs


def _attention_kernel(tile: OperatorTile) -> Kernel:
    if tile.attrs.get("exact"):
        return exact_dropout_attention(tile)
    scale, p = tile.attrs["scale"], tile.attrs.get("p", 0.0)
    # The last arguments of the kernels are the seed and the stream, which native dropout does not use.
    if not tile.attrs["causal"]:
        return lambda q, k, v, mask=None, seed=None, stream=None: F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=p, scale=scale
        )
    queries, keys = len(tile.shape) - 2, tile.region(1)
    assert keys is not None
    attend = causal_attention(tile.box.lo[queries], tile.box.hi[queries], keys.shape[-2], scale, p)
    return lambda q, k, v, mask=None, seed=None, stream=None: attend(q, k, v)


def _attention_flops(op: Op, box: Box, operand: int | None) -> int:
    """Forward (operand None): two products. Backward: the scores again, then products for the gradients of
    the scores, q, k and v: 2.5 times as much. Those of the scores count for q (operand 0). Keys that a
    causal mask hides do not count, as fused kernels leave them out. Exact dropout computes all that are
    read.
    """
    space = op.space
    *lead, t, c = space.output_boxes(box)[0].shape
    k = space.regions(box)[1]
    assert k is not None
    keys, features = k.shape[-2:]  # with a causal mask, the keys up to that of the last query
    seen = t * keys  # pairs of a query and a key
    if op.attrs["causal"] and not op.attrs.get("exact"):
        first = box.lo[len(lead)]  # query i sees keys 0 to i, as far as there are any
        growing = max(
            0, min(first + t, keys) - first
        )  # queries that see one key more than the last
        seen = growing * (2 * first + growing + 1) // 2 + (t - growing) * keys
    pairs = 2 * math.prod(lead) * seen  # times 2 FLOP per feature
    # FLOPs of a product over the features of queries and keys, and of one over those of the values
    by_k, by_c = pairs * features, pairs * c
    return {None: by_k + by_c, 0: 2 * by_k + by_c, 1: by_k, 2: by_c}.get(operand, 0)


def _extra_saved_bytes(op: Op) -> Fraction:
    """Bytes saved for backward besides inputs and output, for each element of the output.

    They belong to a query, and so to a row of the output; a row has as many elements as values have
    features.
    """
    keys, features = (index.extent for index in op.space.operands[2].indices[-2:])
    itemsize = op.dtypes[0].itemsize
    if op.attrs.get("exact"):
        # for each key: the weight, whether it is dropped, and the weight after that
        return Fraction(keys * (2 * itemsize + 1), features)
    return Fraction(max(4, itemsize), features)  # the logarithm of the sum of exponentials


declare(
    "attention",
    _attention_notation,
    _attention_kernel,
    Traits(SavedTensors.BOTH, extra_saved_bytes=_extra_saved_bytes, family="attention"),
    flops=_attention_flops,
    tensor_attr="stream",
)


@aten("scaled_dot_product_attention")
def _translate_attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        times = q.shape[-3] // k.shape[-3]
        k, v = (b.call(A.repeat_interleave.self_int, x, times, -3) for x in (k, v))
    if len(q.shape) < 3:
        raise NotSplittable
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if mask is not None and mask.dtype == torch.bool and not is_causal:
        mask, is_causal = _without_constant_mask(b, mask)
    batch = broadcast_shape(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    shape = (*batch, q.shape[-2], v.shape[-1])
    queries, keys = q.shape[-2], k.shape[-2]
    attrs = {"causal": is_causal, "scale": scale}
    operands = [q, k, v, mask]
    if dropout_p > 0:
        attrs |= {"p": dropout_p, "stream": next_stream(b)}
        operands.append(b.seed())
    tables = {"keys": [(0, min(t + 1, keys)) for t in range(queries)]} if is_causal else None
    return b.emit("attention", operands, [(shape, q.dtype)], attrs, tables=tables)


def _without_constant_mask(b: Builder, mask: Value) -> tuple[Value | None, bool]:
    """The mask that attention needs, and whether it is causal. Fused kernels take no masks.

    Libraries write the causal mask, or one that hides nothing, as a computed tensor when they are traced.
    """
    if mask.name not in b.constant_masks:
        constant, needed, causal = constant_value(b, mask), True, False
        if constant is not None:
            causal = torch.equal(constant, torch.ones_like(constant).tril())
            needed = not causal and not constant.all()
        b.constant_masks[mask.name] = needed, causal
    needed, causal = b.constant_masks[mask.name]
    return (mask if needed else None), causal
